import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * One transaction for so many seconds, by Kafka's Java client as it is when nothing is set: five requests on their way.
 * A shorter one before it has the client compiled. Arguments: the address, the topic, seconds, bytes of a message, bytes
 * of a batch. It says "ready", waits for a line, and says how many messages it has committed.
 */
public class Large {
    static KafkaProducer<byte[], byte[]> producer;
    static String topic;
    static byte[] value;

    static long transact(double seconds) {
        producer.beginTransaction();
        long count = 0, until = System.nanoTime() + (long) (seconds * 1e9);
        while (System.nanoTime() < until) {
            producer.send(new ProducerRecord<>(topic, value));
            count++;
        }
        producer.commitTransaction();
        return count;
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("transactional.id", "large");
        settings.put("batch.size", arguments[4]);
        topic = arguments[1];
        value = new byte[Integer.parseInt(arguments[3])];
        producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        producer.initTransactions();
        double seconds = Double.parseDouble(arguments[2]);
        transact(seconds / 2);
        System.out.println("ready");
        System.in.read();
        System.out.println(transact(seconds));
        producer.close();
    }
}
