import java.io.FileOutputStream;
import java.io.IOException;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.MessageId;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.PulsarClientException;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.Transaction;
import org.apache.pulsar.client.api.v5.config.BackoffPolicy;
import org.apache.pulsar.client.api.v5.config.BatchingPolicy;
import org.apache.pulsar.client.api.v5.config.ConnectionPolicy;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.config.TransactionPolicy;
import org.apache.pulsar.client.api.v5.schema.Schema;
import org.apache.pulsar.client.api.v5.schema.SchemaInfo;

/**
 * A process of Pulsar's V5 clients until SIGTERM, or until it is killed: URL FILE LIFE SEED ROLE, and what the role needs.
 *
 * <pre>
 *   feed      two feeders, and a reader of each topic
 *   work      a worker with a queue consumer, and one with a stream consumer
 *   finish    the same, and they commit whatever they begin
 *   look      TOPIC=COUNT …: reads each topic until so many messages have come, and ends
 * </pre>
 *
 * What is asked and told is written down as by the other clients of the chaos, `tests/histories/calls.py`. An actor that
 * is told of an error closes its client and begins anew with another one, as the page of the documentation says. If a
 * turn does not end, the process ends instead, and whoever supervises it starts the next one.
 */
public class PulsarActors {
    static final String INPUTS = "parcels";
    static final String LABELS = "labels";
    static final String WAYBILLS = "waybills";
    static final int KEYS = 24;
    static final long ANSWER_S = 45;
    static final int HUNG_S = 150;
    static volatile boolean stop = false;

    public static void main(String[] arguments) throws Exception {
        String url = arguments[0];
        Scribe scribe = new Scribe(arguments[1], arguments[2]);
        Random dice = new Random(arguments[3].hashCode());
        List<Actor> actors = new ArrayList<>();
        String life = arguments[2];
        switch (arguments[4]) {
            case "feed":
                actors.add(new Feeder(url, life + "-0", scribe, dice.nextLong()));
                actors.add(new Feeder(url, life + "-1", scribe, dice.nextLong()));
                for (String topic : List.of(INPUTS, LABELS, WAYBILLS)) {
                    actors.add(new Reader(url, life + "-" + topic, scribe, dice.nextLong(), topic));
                }
                break;
            case "work":
            case "finish":
                double abort = arguments[4].equals("work") ? 0.1 : 0;
                actors.add(new QueueWorker(url, life + "-queue", scribe, dice.nextLong(), abort));
                actors.add(new StreamWorker(url, life + "-stream", scribe, dice.nextLong(), abort));
                break;
            case "look":
                for (String wanted : Arrays.asList(arguments).subList(5, arguments.length)) {
                    String[] parts = wanted.split("=");
                    Reader reader = new Reader(url, life + "-" + parts[0], scribe, dice.nextLong(), parts[0]);
                    reader.wanted = Integer.parseInt(parts[1]);
                    actors.add(reader);
                }
                break;
            default:
                throw new IllegalArgumentException(arguments[4]);
        }
        work(actors);
    }

    static void work(List<Actor> actors) throws InterruptedException {
        List<Thread> threads = new ArrayList<>();
        for (Actor actor : actors) {
            threads.add(new Thread(actor, actor.name));
        }
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stop = true;
            for (Thread thread : threads) {
                try {
                    thread.join();
                } catch (InterruptedException error) {
                    Thread.currentThread().interrupt();
                }
            }
        }));
        Thread watchdog = new Thread(() -> watch(actors), "watchdog");
        watchdog.setDaemon(true);
        watchdog.start();
        for (Thread thread : threads) {
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    /** By its own ticks: a process that was frozen has not hung. */
    static void watch(List<Actor> actors) {
        Map<Actor, Integer> silent = new HashMap<>();
        Map<Actor, Integer> turns = new HashMap<>();
        while (true) {
            pause(1000);
            for (Actor actor : actors) {
                boolean moved = actor.done || !Integer.valueOf(actor.turns).equals(turns.put(actor, actor.turns));
                if (silent.merge(actor, 1, (before, one) -> moved ? 0 : before + one) < HUNG_S) {
                    continue;
                }
                System.out.println(actor.name + " has hung, and its process ends");
                Thread.getAllStackTraces().forEach((thread, trace) -> {
                    System.out.println(thread.getName());
                    Arrays.stream(trace).limit(12).forEach(line -> System.out.println("    " + line));
                });
                System.out.flush();
                Runtime.getRuntime().halt(3);
            }
        }
    }

    static void pause(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    /** What the client would do is not what the program has asked for, so the transaction must not be committed. */
    @SuppressWarnings("serial")
    static class Unfit extends Exception {
        Unfit(String message) {
            super(message);
        }
    }

    interface Does<T> {
        T now() throws Exception;
    }

    /** Writes whole lines, each before a call is made or after it was answered. */
    static class Scribe {
        private final FileOutputStream file;
        private final String life;
        private final AtomicInteger numbers = new AtomicInteger();

        Scribe(String path, String life) throws IOException {
            this.file = new FileOutputStream(path, true);
            this.life = life;
        }

        String invoke(String actor, Map<String, Object> action) {
            String call = life + "." + numbers.getAndIncrement();
            write(call, actor, "invoke", action);
            return call;
        }

        void answer(String call, String actor, String outcome, Object result) {
            write(call, actor, outcome, result);
        }

        /** Whatever has failed may have been done all the same. */
        <T> T call(String actor, Map<String, Object> action, Object told, Does<T> does) throws Exception {
            String call = invoke(actor, action);
            try {
                T found = does.now();
                answer(call, actor, "ok", told);
                return found;
            } catch (Exception error) {
                answer(call, actor, "unknown", toldBy(error));
                throw error;
            }
        }

        private synchronized void write(String call, String actor, String event, Object body) {
            Map<String, Object> entry = new LinkedHashMap<>();
            entry.put("call", call);
            entry.put("client", actor);
            entry.put("event", event);
            entry.put("at", System.nanoTime());
            entry.put("body", body);
            try {
                file.write((json(entry) + "\n").getBytes(StandardCharsets.UTF_8));
            } catch (IOException error) {
                Runtime.getRuntime().halt(4);
            }
        }
    }

    static Map<String, Object> action(Object... pairs) {
        Map<String, Object> action = new LinkedHashMap<>();
        for (int at = 0; at < pairs.length; at += 2) {
            action.put((String) pairs[at], pairs[at + 1]);
        }
        return action;
    }

    static String json(Object value) {
        if (value instanceof Map<?, ?> map) {
            List<String> parts = new ArrayList<>();
            map.forEach((name, each) -> parts.add(json(name) + ":" + json(each)));
            return "{" + String.join(",", parts) + "}";
        }
        if (value instanceof List<?> list) {
            return "[" + String.join(",", list.stream().map(PulsarActors::json).toList()) + "]";
        }
        if (value instanceof String text) {
            StringBuilder quoted = new StringBuilder("\"");
            for (char each : text.toCharArray()) {
                if (each == '"' || each == '\\') {
                    quoted.append('\\').append(each);
                } else {
                    quoted.append(each < ' ' ? String.format("\\u%04x", (int) each) : each);
                }
            }
            return quoted.append('"').toString();
        }
        return String.valueOf(value);
    }

    /** The innermost error that is more than a wrapper. */
    static Throwable cause(Throwable error) {
        while (error.getCause() != null
                && (error instanceof ExecutionException
                        || error instanceof CompletionException
                        || error.getClass() == PulsarClientException.class
                        || error.getClass() == org.apache.pulsar.client.api.PulsarClientException.class)) {
            error = error.getCause();
        }
        return error;
    }

    static String toldBy(Throwable error) {
        Throwable cause = cause(error);
        return "V5 " + cause.getClass().getSimpleName() + ": " + cause.getMessage();
    }

    /** Texts. It counts how often the client makes the entry of each message that is under way: this client sends a
     * message anew, as that of another producer, if its segment was sealed before the answer came. */
    static class Counting implements Schema<String> {
        private final Map<String, Integer> sent = new ConcurrentHashMap<>();

        @Override
        public byte[] encode(String text) {
            sent.merge(text, 1, Integer::sum);
            return text.getBytes(StandardCharsets.UTF_8);
        }

        @Override
        public String decode(byte[] bytes) {
            return new String(bytes, StandardCharsets.UTF_8);
        }

        @Override
        public SchemaInfo schemaInfo() {
            return Schema.string().schemaInfo();
        }

        int taken(String text) {
            Integer times = sent.remove(text);
            return times == null ? 0 : times;
        }
    }

    abstract static class Actor implements Runnable {
        final String name;
        final Scribe scribe;
        final Random dice;
        final Counting schema = new Counting();
        private final String url;
        private final AtomicInteger numbers = new AtomicInteger();
        private final AtomicInteger transactions = new AtomicInteger();
        volatile int turns = 0;
        volatile boolean done = false;
        double pauseS = 0.1;
        PulsarClient client;
        long timeoutMs;

        Actor(String url, String name, Scribe scribe, long seed) {
            this.url = url;
            this.name = name;
            this.scribe = scribe;
            this.dice = new Random(seed);
        }

        @Override
        public void run() {
            while (!stop && !done) {
                pause((long) (-1000 * pauseS * Math.log(1 - dice.nextDouble())));
                try {
                    if (client == null) {
                        begin();
                    }
                    turn();
                } catch (Exception error) {
                    say(toldBy(error));
                    anew();
                }
                turns++;
            }
            try {
                last();
            } catch (Exception error) {
                say(toldBy(error));
            }
            anew();
            done = true;
        }

        void say(String what) {
            System.out.println(name + ": " + what);
        }

        /** What has an answer within a while. */
        <T> T answered(CompletableFuture<T> future) throws Exception {
            return future.get(ANSWER_S, TimeUnit.SECONDS);
        }

        void begin() throws Exception {
            timeoutMs = List.of(3_000, 10_000, 30_000).get(dice.nextInt(3));
            // One that cannot connect tries again so soon that faults of seconds are over for it, too.
            BackoffPolicy soon = BackoffPolicy.exponential(Duration.ofMillis(50), Duration.ofMillis(500));
            client = PulsarClient.builder()
                    .serviceUrl(url)
                    .operationTimeout(Duration.ofSeconds(15))
                    .connectionPolicy(ConnectionPolicy.builder()
                            .ioThreads(1)
                            .callbackThreads(1)
                            .connectionBackoff(soon)
                            .build())
                    .transactionPolicy(TransactionPolicy.builder().timeout(Duration.ofMillis(timeoutMs)).build())
                    .build();
            open();
        }

        void anew() {
            PulsarClient before = client;
            client = null;
            if (before != null) {
                try {
                    before.close();
                } catch (Exception error) {
                    say("closing: " + toldBy(error));
                }
            }
        }

        abstract void open() throws Exception;

        abstract void turn() throws Exception;

        void last() throws Exception {}

        Producer<String> producer(String topic, boolean patient) throws Exception {
            BatchingPolicy batching = dice.nextBoolean()
                    ? BatchingPolicy.builder().maxPublishDelay(Duration.ofMillis(5)).build()
                    : BatchingPolicy.ofDisabled();
            return answered(client.newProducer(schema)
                    .topic(topic)
                    .sendTimeout(patient ? Duration.ZERO : Duration.ofMillis(1000 + dice.nextInt(4000)))
                    .batchingPolicy(batching)
                    .createAsync());
        }

        CompletableFuture<?> send(
                Producer<String> producer, String topic, String key, String txn, Transaction inside, String of) {
            String id = name + "." + numbers.getAndIncrement();
            String call = scribe.invoke(name, action(
                    "do", "write", "id", id, "topic", topic, "key", key, "txn", txn, "amount", 0, "of", of,
                    "resends", true));
            String value = "{\"id\": \"" + id + "\"}";
            var message = producer.async().newMessage().key(key).value(value).property("content-type", "application/json");
            if (inside != null) {
                message.transaction(inside);
            }
            return message.send().whenComplete((place, error) -> {
                int times = schema.taken(value);
                if (error == null) {
                    scribe.answer(call, name, "ok", times);
                } else {
                    scribe.answer(call, name, "unknown", toldBy(error));
                }
            });
        }

        interface Works {
            void in(Transaction transaction, String txn) throws Exception;
        }

        /** Begin, do the work, and commit, or abort. Returns whether it was committed. */
        boolean transact(Works work, double abort) throws Exception {
            String txn = name + ".t" + transactions.getAndIncrement();
            Transaction transaction = scribe.call(
                    name, action("do", "begin", "timeout_ms", timeoutMs), txn, () -> answered(client.newTransactionAsync()));
            boolean commit = dice.nextDouble() >= abort;
            try {
                work.in(transaction, txn);
            } catch (Exception error) {
                say("aborted: " + toldBy(error));
                end(transaction, txn, false);
                throw error;
            }
            end(transaction, txn, commit);
            return commit;
        }

        private void end(Transaction transaction, String txn, boolean commit) throws Exception {
            var ended = transaction.async();
            scribe.call(name, action("do", "end", "txn", txn, "commit", commit), null, () ->
                    answered(commit ? ended.commit() : ended.abort()));
        }

        /** Some transactions take longer, maybe too long, so that what befalls a client finds it inside one. */
        void dawdle() {
            if (dice.nextDouble() < 0.05) {
                pause(dice.nextInt(4000));
            }
        }
    }

    /** Some of its messages are sent in transactions. Of the others at most one with each key is under way: this client
     * sends those of a segment that is sealed again, one later than the other. */
    static class Feeder extends Actor {
        private Producer<String> producer;
        private boolean patient;

        Feeder(String url, String name, Scribe scribe, long seed) {
            super(url, name, scribe, seed);
            pauseS = 0.3;
        }

        @Override
        void open() throws Exception {
            patient = dice.nextDouble() < 0.7;
            producer = producer(INPUTS, patient);
        }

        @Override
        void turn() throws Exception {
            if (dice.nextDouble() < 0.03) {
                anew();
                begin();
            }
            if (dice.nextBoolean()) {
                transact((transaction, txn) -> feed(transaction, txn), 0.3);
            } else {
                feed(null, null);
            }
        }

        private void feed(Transaction transaction, String txn) throws Exception {
            Set<String> keys = new LinkedHashSet<>();
            for (int number = List.of(1, 3, 10).get(dice.nextInt(3)); number > 0; number--) {
                keys.add("k" + dice.nextInt(KEYS));
            }
            List<CompletableFuture<?>> sent = new ArrayList<>();
            for (String key : keys) {
                sent.add(send(producer, INPUTS, key, txn, transaction, null));
            }
            answered(CompletableFuture.allOf(sent.toArray(CompletableFuture[]::new)));
        }
    }

    abstract static class Worker extends Actor {
        private static final int IDLE_TURNS = 15;
        private final double abort;
        private final String outputs;
        private int idle = 0;
        Producer<String> producer;

        Worker(String url, String name, Scribe scribe, long seed, String outputs, double abort) {
            super(url, name, scribe, seed);
            this.abort = abort;
            this.outputs = outputs;
            pauseS = 0.05;
        }

        abstract Message<String> receive(Duration timeout) throws Exception;

        /** All that the program must have before it can acknowledge. */
        abstract boolean complete(Message<String> last) throws Exception;

        abstract void acknowledge(List<Message<String>> messages, Transaction transaction) throws Exception;

        abstract void aborted();

        @Override
        void turn() throws Exception {
            int most = List.of(1, 3, 10).get(dice.nextInt(3));
            List<Message<String>> given = new ArrayList<>();
            Message<String> message = receive(Duration.ofSeconds(1));
            while (message != null) {
                given.add(message);
                boolean complete = complete(message);
                if (given.size() >= most && complete) {
                    break;
                }
                message = receive(Duration.ofMillis(complete ? 5 : 2000));
                if (message == null && !complete) {
                    throw new Unfit("an acknowledgement would cover what did not come");
                }
            }
            if (given.isEmpty()) {
                if (++idle >= IDLE_TURNS) {
                    idle = 0;
                    anew();
                }
                return;
            }
            idle = 0;
            if (!transact((transaction, txn) -> transform(given, transaction, txn), abort)) {
                aborted();
            }
        }

        private void transform(List<Message<String>> given, Transaction transaction, String txn) throws Exception {
            List<CompletableFuture<?>> sent = new ArrayList<>();
            for (Message<String> each : given) {
                String id = each.value().split("\"")[3];
                sent.add(send(producer, outputs, each.key().orElseThrow(), txn, transaction, id));
            }
            dawdle();
            acknowledge(given, transaction);
            answered(CompletableFuture.allOf(sent.toArray(CompletableFuture[]::new)));
        }
    }

    /** Whether the client still has the consumer that an acknowledgement needs. Otherwise it drops that silently. */
    static class Consumers {
        private final Map<Long, CompletableFuture<?>> known;

        @SuppressWarnings("unchecked")
        Consumers(Object consumer) throws ReflectiveOperationException {
            Field field = consumer.getClass().getDeclaredField("segmentConsumers");
            field.setAccessible(true);
            known = (Map<Long, CompletableFuture<?>>) field.get(consumer);
        }

        Map<Long, CompletableFuture<?>> of(Set<Long> segments) throws Unfit {
            Map<Long, CompletableFuture<?>> found = new HashMap<>();
            for (Long segment : segments) {
                CompletableFuture<?> consumer = known.get(segment);
                if (consumer == null || !consumer.isDone() || consumer.isCompletedExceptionally()) {
                    throw new Unfit("the client has no consumer of a segment, and would drop an acknowledgement");
                }
                found.put(segment, consumer);
            }
            return found;
        }

        static Object asked(MessageId id, String method) throws ReflectiveOperationException {
            Method found = id.getClass().getDeclaredMethod(method);
            found.setAccessible(true);
            return found.invoke(id);
        }

        static Long segment(MessageId id) throws ReflectiveOperationException {
            return (Long) asked(id, "segmentId");
        }
    }

    /** Acknowledges each message by itself. It may be given one again while it still has it: its client had another
     * connection in between. */
    static class QueueWorker extends Worker {
        private QueueConsumer<String> consumer;
        private Consumers consumers;
        private final Set<MessageId> here = new LinkedHashSet<>();

        QueueWorker(String url, String name, Scribe scribe, long seed, double abort) {
            super(url, name, scribe, seed, LABELS, abort);
        }

        @Override
        void open() throws Exception {
            producer = producer(LABELS, dice.nextBoolean());
            consumer = answered(client.newQueueConsumer(schema)
                    .topic(INPUTS)
                    .subscriptionName("labelling")
                    .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                    .consumerName(name)
                    .receiverQueueSize(List.of(1, 10, 100).get(dice.nextInt(3)))
                    .subscribeAsync());
            consumers = new Consumers(consumer);
        }

        @Override
        void turn() throws Exception {
            here.clear();
            super.turn();
        }

        @Override
        Message<String> receive(Duration timeout) throws Exception {
            Message<String> message = consumer.receive(timeout);
            while (message != null && !here.add(message.id())) {
                message = consumer.receive(timeout);
            }
            return message;
        }

        @Override
        boolean complete(Message<String> last) {
            return true;
        }

        @Override
        void acknowledge(List<Message<String>> messages, Transaction transaction) throws Exception {
            for (Message<String> each : messages) {
                Set<Long> segment = Set.of(Consumers.segment(each.id()));
                var before = consumers.of(segment);
                consumer.acknowledge(each.id(), transaction);
                if (!consumers.of(segment).equals(before)) {
                    throw new Unfit("a consumer of the client has changed during an acknowledgement");
                }
            }
        }

        @Override
        void aborted() {}
    }

    /** Acknowledges everything up to its last message. */
    static class StreamWorker extends Worker {
        private StreamConsumer<String> consumer;
        private Consumers consumers;
        private final Map<Long, Object> reached = new HashMap<>();

        StreamWorker(String url, String name, Scribe scribe, long seed, double abort) {
            super(url, name, scribe, seed, WAYBILLS, abort);
        }

        @Override
        void open() throws Exception {
            reached.clear();
            producer = producer(WAYBILLS, dice.nextBoolean());
            consumer = answered(client.newStreamConsumer(schema)
                    .topic(INPUTS)
                    .subscriptionName("shipping")
                    .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                    .consumerName(name)
                    .subscribeAsync());
            consumers = new Consumers(consumer);
        }

        /** After another connection, the client delivers what it has delivered before: then the program has to begin
         * anew, because an acknowledgement of what follows would be accepted. */
        @Override
        @SuppressWarnings("unchecked")
        Message<String> receive(Duration timeout) throws Exception {
            Message<String> message = consumer.receive(timeout);
            if (message != null) {
                Object place = Consumers.asked(message.id(), "v4MessageId");
                Object before = reached.put(Consumers.segment(message.id()), place);
                if (before != null && ((Comparable<Object>) before).compareTo(place) >= 0) {
                    throw new Unfit("a message came again");
                }
            }
            return message;
        }

        /** An acknowledgement covers what the client had received of every segment. Some of that may come later. */
        @Override
        @SuppressWarnings("unchecked")
        boolean complete(Message<String> last) throws Exception {
            var covered = (Map<Long, Object>) Consumers.asked(last.id(), "positionVector");
            return covered.entrySet().stream().allMatch(each -> each.getValue().equals(reached.get(each.getKey())));
        }

        @Override
        @SuppressWarnings("unchecked")
        void acknowledge(List<Message<String>> messages, Transaction transaction) throws Exception {
            MessageId last = messages.get(messages.size() - 1).id();
            Set<Long> covered = ((Map<Long, Object>) Consumers.asked(last, "positionVector")).keySet();
            Set<Long> needed = new LinkedHashSet<>();
            for (Message<String> each : messages) {
                needed.add(Consumers.segment(each.id()));
            }
            if (!covered.containsAll(needed)) {
                throw new Unfit("an acknowledgement would leave a message out");
            }
            var before = consumers.of(needed);
            consumer.acknowledgeCumulative(last, transaction);
            if (!consumers.of(needed).equals(before)) {
                throw new Unfit("a consumer of the client has changed during an acknowledgement");
            }
        }

        /** As the page says. */
        @Override
        void aborted() {
            anew();
        }
    }

    /** Reads from the beginning, and of each segment by itself: this client mixes them. */
    static class Reader extends Actor {
        private final String topic;
        private CheckpointConsumer<String> consumer;
        private String life;
        private final AtomicInteger lives = new AtomicInteger();
        private int seen = 0;
        int wanted = -1;

        Reader(String url, String name, Scribe scribe, long seed, String topic) {
            super(url, name, scribe, seed);
            this.topic = topic;
            pauseS = 1.0;
        }

        @Override
        void open() throws Exception {
            life = name + "." + lives.getAndIncrement();
            seen = 0;
            consumer = answered(client.newCheckpointConsumer(schema)
                    .topic(topic)
                    .startPosition(Checkpoint.earliest())
                    .createAsync());
        }

        @Override
        void turn() throws Exception {
            Map<Long, List<Object>> found = new LinkedHashMap<>();
            int before = seen;
            Message<String> message = consumer.receive(Duration.ofSeconds(1));
            while (message != null) {
                String id = message.value().split("\"")[3];
                long segment = Consumers.segment(message.id());
                found.computeIfAbsent(segment, any -> new ArrayList<>()).add(List.of(message.key().orElse(""), id));
                seen++;
                message = seen - before < 500 ? consumer.receive(Duration.ofMillis(50)) : null;
            }
            found.forEach((segment, messages) -> {
                var read = action("do", "read", "reader", life, "topic", topic, "segment", segment);
                scribe.answer(scribe.invoke(name, read), name, "ok", messages);
            });
            done = wanted >= 0 && seen >= wanted && seen == before;
        }

        @Override
        void last() throws Exception {
            if (wanted < 0 && client != null) {
                turn();
            }
        }
    }
}
