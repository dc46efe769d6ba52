import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.MessageBuilder;
import org.apache.pulsar.client.api.v5.MessageId;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.ProducerBuilder;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.PulsarClientBuilder;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.Transaction;
import org.apache.pulsar.client.api.v5.auth.Authentication;
import org.apache.pulsar.client.api.v5.auth.AuthenticationFactory;
import org.apache.pulsar.client.api.v5.config.BackoffPolicy;
import org.apache.pulsar.client.api.v5.config.BatchingPolicy;
import org.apache.pulsar.client.api.v5.config.ChunkingPolicy;
import org.apache.pulsar.client.api.v5.config.CompressionPolicy;
import org.apache.pulsar.client.api.v5.config.CompressionType;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.config.TlsPolicy;
import org.apache.pulsar.client.api.v5.config.TransactionPolicy;
import org.apache.pulsar.client.api.v5.schema.Schema;

/** Does with the V5 client what it is told: a line with a verb and its arguments, separated by tabs; one line back. */
public class Driver {
    private final PulsarClient client;
    private final Map<String, Producer<String>> producers = new HashMap<>();
    private final Map<String, CheckpointConsumer<String>> readers = new HashMap<>();
    private final Map<String, QueueConsumer<String>> queues = new HashMap<>();
    private final Map<String, StreamConsumer<String>> streams = new HashMap<>();
    private final Map<String, Map<String, MessageId>> received = new HashMap<>();
    private final Map<String, Transaction> transactions = new HashMap<>();

    Driver(PulsarClient client) {
        this.client = client;
    }

    public static void main(String[] arguments) throws Exception {
        TransactionPolicy policy = TransactionPolicy.builder().timeout(Duration.ofMinutes(1)).build();
        PulsarClientBuilder builder = PulsarClient.builder().serviceUrl(arguments[0]).transactionPolicy(policy);
        if (arguments.length > 1) {
            builder.authentication(authentication(arguments[1]));
        }
        if (arguments.length > 2) {
            builder.tlsPolicy(TlsPolicy.builder().trustCertsFilePath(arguments[2]).build());
        }
        try (PulsarClient client = builder.build()) {
            Driver driver = new Driver(client);
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

    /** A token, or `file:` with the file that has it now. */
    private static Authentication authentication(String token) {
        if (!token.startsWith("file:")) {
            return AuthenticationFactory.token(token);
        }
        Path file = Path.of(token.substring(5));
        return AuthenticationFactory.token(() -> {
            try {
                return Files.readString(file).strip();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        });
    }

    private String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "producer":
                producers.put(words[1], producer(words));
                return "ok";
            case "send":
                return sent(words).send().toString();
            case "send many":
                return sendMany(words);
            case "close producer":
                producers.remove(words[1]).close();
                return "ok";
            case "last sequence":
                return Long.toString(producers.get(words[1]).lastSequenceId());
            case "begin":
                transactions.put(words[1], client.newTransaction());
                return "ok";
            case "commit":
                transactions.get(words[1]).commit();
                return transactions.get(words[1]).state().toString();
            case "abort":
                transactions.get(words[1]).abort();
                return transactions.get(words[1]).state().toString();
            case "reader":
                Checkpoint from = words[3].equals("earliest") ? Checkpoint.earliest() : Checkpoint.latest();
                readers.put(words[1], reader(words[2], from));
                return "ok";
            case "reader from":
                readers.put(words[1], reader(words[2], readers.get(words[3]).checkpoint()));
                return "ok";
            case "read":
                return shown(readers.get(words[1]).receive(Duration.ofMillis(Long.parseLong(words[2]))));
            case "queue":
                queues.put(words[1], queue(words[2], words[3]));
                return "ok";
            case "take":
                return taken(words[1], queues.get(words[1]).receive(Duration.ofMillis(Long.parseLong(words[2]))));
            case "acknowledge":
                acknowledge(words);
                return "ok";
            case "give back":
                queues.get(words[1]).negativeAcknowledge(received.get(words[1]).remove(words[2]));
                return "ok";
            case "close queue":
                queues.remove(words[1]).close();
                return "ok";
            case "stream":
                streams.put(words[1], stream(words[2], words[3]));
                return "ok";
            case "take in order":
                return taken(words[1], streams.get(words[1]).receive(Duration.ofMillis(Long.parseLong(words[2]))));
            case "acknowledge up to":
                acknowledgeUpTo(words);
                return "ok";
            case "close stream":
                streams.remove(words[1]).close();
                return "ok";
            default:
                throw new IllegalArgumentException(Arrays.toString(words));
        }
    }

    /** producer, name, topic, what else it is: name=…, lz4, batches, chunks. */
    private Producer<String> producer(String[] words) throws Exception {
        ProducerBuilder<String> builder = client.newProducer(Schema.string()).topic(words[2]);
        for (String word : Arrays.asList(words).subList(3, words.length)) {
            if (word.startsWith("name=")) {
                builder.producerName(word.substring(5));
            } else if (word.equals("batches")) {
                builder.batchingPolicy(BatchingPolicy.builder().maxPublishDelay(Duration.ofMillis(20)).build());
            } else if (word.equals("chunks")) {
                builder.chunkingPolicy(ChunkingPolicy.builder().enabled(true).chunkSize(100).build());
            } else {
                builder.compressionPolicy(CompressionPolicy.of(CompressionType.valueOf(word)));
            }
        }
        return builder.create();
    }

    /** send, producer, key, value, transaction. */
    private MessageBuilder<String> sent(String[] words) {
        MessageBuilder<String> message = producers.get(words[1]).newMessage().value(words[3]);
        if (!words[2].isEmpty()) {
            message.key(words[2]);
        }
        return words.length > 4 ? message.transaction(transactions.get(words[4])) : message;
    }

    /** send many, producer, how many, value, transaction: all at once, each with a key of its own. */
    private String sendMany(String[] words) throws Exception {
        Producer<String> producer = producers.get(words[1]);
        for (int number = 0; number < Integer.parseInt(words[2]); number++) {
            var message = producer.async().newMessage().key("key " + number).value(words[3] + " " + number);
            if (words.length > 4) {
                message.transaction(transactions.get(words[4]));
            }
            message.send();
        }
        producer.async().flush().get();
        return "ok";
    }

    private CheckpointConsumer<String> reader(String topic, Checkpoint from) throws Exception {
        return client.newCheckpointConsumer(Schema.string()).topic(topic).startPosition(from).create();
    }

    private QueueConsumer<String> queue(String topic, String subscription) throws Exception {
        return client.newQueueConsumer(Schema.string())
                .topic(topic)
                .subscriptionName(subscription)
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                .negativeAckRedeliveryBackoff(BackoffPolicy.exponential(Duration.ofMillis(50), Duration.ofMillis(100)))
                .subscribe();
    }

    private StreamConsumer<String> stream(String topic, String subscription) throws Exception {
        return client.newStreamConsumer(Schema.string())
                .topic(topic)
                .subscriptionName(subscription)
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                .subscribe();
    }

    private String taken(String consumer, Message<String> message) {
        if (message != null) {
            received.computeIfAbsent(consumer, name -> new HashMap<>()).put(message.value(), message.id());
        }
        return shown(message);
    }

    /** acknowledge, consumer, value, transaction. */
    private void acknowledge(String[] words) throws Exception {
        MessageId id = received.get(words[1]).remove(words[2]);
        if (words.length > 3) {
            queues.get(words[1]).acknowledge(id, transactions.get(words[3]));
        } else {
            queues.get(words[1]).acknowledge(id);
        }
    }

    /** acknowledge up to, consumer, value, transaction. */
    private void acknowledgeUpTo(String[] words) throws Exception {
        MessageId id = received.get(words[1]).get(words[2]);
        if (words.length > 3) {
            streams.get(words[1]).acknowledgeCumulative(id, transactions.get(words[3]));
        } else {
            streams.get(words[1]).acknowledgeCumulative(id);
        }
    }

    private static String shown(Message<String> message) {
        return message == null ? "nothing" : message.key().orElse("") + "=" + message.value();
    }
}
