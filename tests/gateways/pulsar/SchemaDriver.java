import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.config.BatchingPolicy;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.GenericRecord;
import org.apache.pulsar.client.api.v5.schema.Schema;
import org.apache.pulsar.client.api.v5.schema.SchemaInfo;
import org.apache.pulsar.client.api.v5.schema.SchemaType;

/** As `Driver`, for messages with schemas. */
public class SchemaDriver {
    public static class Payment {
        public String who;
        public int amount;

        @Override
        public String toString() {
            return "who=" + who + " amount=" + amount;
        }
    }

    public static class LaterPayment {
        public String who;
        public int amount;
        public String currency;

        @Override
        public String toString() {
            return "who=" + who + " amount=" + amount + " currency=" + currency;
        }
    }

    private final PulsarClient client;
    private final Map<String, Producer<?>> producers = new HashMap<>();
    private final Map<String, CheckpointConsumer<?>> readers = new HashMap<>();
    private final Map<String, QueueConsumer<?>> queues = new HashMap<>();

    SchemaDriver(PulsarClient client) {
        this.client = client;
    }

    public static void main(String[] arguments) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            SchemaDriver driver = new SchemaDriver(client);
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String answer;
                try {
                    answer = driver.answer(line.split("\t"));
                } catch (Exception error) {
                    answer = "error " + error;
                }
                System.out.println("\t" + answer.replace('\n', ' '));
            }
        }
    }

    private String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "producer":
                producers.put(words[1], producer(words[2], schema(words[3])));
                return "ok";
            case "send":
                send(words);
                return "ok";
            case "reader":
                readers.put(words[1], reader(words[2], schema(words[3])));
                return "ok";
            case "read":
                return shown(readers.get(words[1]).receive(Duration.ofMillis(Long.parseLong(words[2]))));
            case "queue":
                queues.put(words[1], queue(words[2], schema(words[3])));
                return "ok";
            case "take":
                return shown(queues.get(words[1]).receive(Duration.ofMillis(Long.parseLong(words[2]))));
            default:
                throw new IllegalArgumentException(Arrays.toString(words));
        }
    }

    private static Schema<?> schema(String kind) {
        switch (kind) {
            case "json":
                return Schema.json(Payment.class);
            case "avro":
                return Schema.avro(Payment.class);
            case "later json":
                return Schema.json(LaterPayment.class);
            case "later avro":
                return Schema.avro(LaterPayment.class);
            case "string":
                return Schema.string();
            case "int32":
                return Schema.int32();
            case "bytes":
                return Schema.bytes();
            case "auto":
                return Schema.autoConsume();
            case "auto bytes":
                return Schema.autoProduceBytes();
            case "auto bytes of json":
                return Schema.autoProduceBytesOf(Schema.json(Payment.class));
            case "large":
                return Schema.generic(SchemaInfo.of("large", SchemaType.AVRO, record(100_000), Map.of()));
            default:
                throw new IllegalArgumentException(kind);
        }
    }

    /** An Avro schema with so many characters of documentation. */
    private static byte[] record(int characters) {
        String text = "{\"type\":\"record\",\"name\":\"Large\",\"doc\":\"" + "x".repeat(characters)
                + "\",\"fields\":[{\"name\":\"who\",\"type\":\"string\"}]}";
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private <T> Producer<T> producer(String topic, Schema<T> schema) throws Exception {
        return client.newProducer(schema)
                .topic(topic)
                .batchingPolicy(BatchingPolicy.builder().maxPublishDelay(Duration.ofMillis(5)).build())
                .create();
    }

    private <T> CheckpointConsumer<T> reader(String topic, Schema<T> schema) throws Exception {
        return client.newCheckpointConsumer(schema).topic(topic).startPosition(Checkpoint.earliest()).create();
    }

    private <T> QueueConsumer<T> queue(String topic, Schema<T> schema) throws Exception {
        return client.newQueueConsumer(schema)
                .topic(topic)
                .subscriptionName("s")
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                .subscribe();
    }

    /** send, producer, kind of its schema, who, amount. */
    @SuppressWarnings("unchecked")
    private void send(String[] words) throws Exception {
        ((Producer<Object>) producers.get(words[1])).newMessage().key(words[3]).value(value(words)).send();
    }

    private static Object value(String[] words) {
        int amount = Integer.parseInt(words[4]);
        switch (words[2]) {
            case "json":
            case "avro":
                Payment payment = new Payment();
                payment.who = words[3];
                payment.amount = amount;
                return payment;
            case "later json":
            case "later avro":
                LaterPayment later = new LaterPayment();
                later.who = words[3];
                later.amount = amount;
                later.currency = "EUR";
                return later;
            case "string":
                return words[3];
            case "int32":
                return amount;
            default:
                return ("{\"who\":\"" + words[3] + "\",\"amount\":" + amount + "}").getBytes(StandardCharsets.UTF_8);
        }
    }

    private static String shown(Message<?> message) {
        if (message == null) {
            return "nothing";
        }
        Object value = message.value();
        if (value instanceof byte[] bytes) {
            return new String(bytes, StandardCharsets.UTF_8);
        }
        if (!(value instanceof GenericRecord generic)) {
            return String.valueOf(value);
        }
        if (generic.fields() == null || generic.fields().isEmpty()) {
            Object content = generic.nativeObject();
            String text = content instanceof byte[] bytes ? new String(bytes, StandardCharsets.UTF_8) : content.toString();
            return generic.schemaType() + " " + text;
        }
        return generic.schemaType() + " " + generic.fields().stream()
                .map(field -> field.name() + "=" + generic.field(field))
                .collect(Collectors.joining(" "));
    }
}
