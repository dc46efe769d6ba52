import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** A program of kafka-clients, and a journal of all that it is told, as the one of confluent-kafka. */
public class Program {
    static final Duration PATIENCE = Duration.ofSeconds(60);
    static final TopicPartition PLACE = new TopicPartition("java", 0);
    static String servers;

    interface Action {
        Object run() throws Exception;
    }

    static void tell(String what, Object value) {
        System.out.println(what + ": " + value);
    }

    static void attempt(String what, Action action) {
        try {
            tell(what, action.run());
        } catch (Exception error) {
            Throwable cause = error instanceof java.util.concurrent.ExecutionException ? error.getCause() : error;
            tell(what, cause.getClass().getSimpleName());
        }
    }

    static Properties settings(String... more) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        for (int at = 0; at < more.length; at += 2) settings.put(more[at], more[at + 1]);
        return settings;
    }

    static KafkaProducer<String, String> producer(String... more) {
        return new KafkaProducer<>(settings(more), new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(String... more) {
        Properties settings = settings(more);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    static List<String> read(String isolation, int number) {
        try (var consumer = consumer("isolation.level", isolation)) {
            consumer.assign(List.of(PLACE));
            return values(consumer, number);
        }
    }

    static List<String> values(KafkaConsumer<String, String> consumer, int number) {
        List<String> found = new ArrayList<>();
        long end = System.nanoTime() + PATIENCE.toNanos();
        while (found.size() < number && System.nanoTime() < end) {
            for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofSeconds(1))) found.add(each.value());
        }
        return found;
    }

    static long sent(KafkaProducer<String, String> producer, String value) throws Exception {
        return producer.send(new ProducerRecord<>("java", 0, "k", value)).get().offset();
    }

    public static void main(String[] arguments) throws Exception {
        servers = arguments[0];
        try (Admin admin = Admin.create(settings())) {
            admin.createTopics(List.of(new NewTopic("java", 1, (short) 1))).all().get();
            attempt("create again", () -> admin.createTopics(List.of(new NewTopic("java", 1, (short) 1))).all().get());
            try (var producer = producer()) {
                tell("sent", List.of(sent(producer, "a"), sent(producer, "b"), sent(producer, "c")));
            }
            transactions();
            groups(admin);
            var deleted = admin.deleteRecords(Map.of(PLACE, RecordsToDelete.beforeOffset(1)));
            tell("begins at", deleted.lowWatermarks().get(PLACE).get().lowWatermark());
            attempt("beyond", () -> admin.deleteRecords(Map.of(PLACE, RecordsToDelete.beforeOffset(99))).all().get());
            tell("nodes", admin.describeCluster().nodes().get().size());
            admin.deleteTopics(List.of("java")).all().get();
        }
    }

    static void transactions() throws Exception {
        try (var producer = producer("transactional.id", "java"); var rival = producer("transactional.id", "java")) {
            producer.initTransactions();
            for (String value : Arrays.asList("kept", "dropped", "kept too")) {
                producer.beginTransaction();
                sent(producer, value);
                if (value.equals("dropped")) producer.abortTransaction();
                else producer.commitTransaction();
            }
            tell("committed", read("read_committed", 5));
            tell("all", read("read_uncommitted", 6));
            producer.beginTransaction();
            sent(producer, "fenced");
            rival.initTransactions();
            attempt("fenced", () -> {
                producer.commitTransaction();
                return null;
            });
        }
    }

    static void groups(Admin admin) throws Exception {
        try (var consumer = consumer("group.id", "java", "isolation.level", "read_committed");
                var producer = producer("transactional.id", "java offsets")) {
            consumer.subscribe(List.of("java"));
            tell("consumed", values(consumer, 5));
            producer.initTransactions();
            for (int offset : new int[] {1, 2}) {
                producer.beginTransaction();
                var offsets = Map.of(PLACE, new OffsetAndMetadata(offset, "note"));
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                if (offset == 1) producer.commitTransaction();
                else producer.abortTransaction();
            }
            tell("committed offset", consumer.committed(Set.of(PLACE)).get(PLACE));
            var described = admin.describeConsumerGroups(List.of("java")).describedGroups().get("java").get();
            tell("group", described.groupState() + " " + described.members().size());
            attempt("delete it", () -> admin.deleteConsumerGroups(List.of("java")).all().get());
        }
        tell("offsets", new TreeMap<>(Map.of("0", admin.listConsumerGroupOffsets("java")
            .partitionsToOffsetAndMetadata().get().get(PLACE).offset())));
        attempt("delete it then", () -> admin.deleteConsumerGroups(List.of("java")).all().get());
        attempt("delete it again", () -> admin.deleteConsumerGroups(List.of("java")).all().get());
    }
}
