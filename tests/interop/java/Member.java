// A member of a consumer with order per key, by stock nats.java: what ../go/member.go is in Go.
//
//   java Member consumer URL STREAM CONSUMER N
//   java Member member URL STREAM CONSUMER consume|iterate|fetch       until its standard input ends
import io.nats.client.Connection;
import io.nats.client.ConsumeOptions;
import io.nats.client.ConsumerContext;
import io.nats.client.FetchConsumeOptions;
import io.nats.client.FetchConsumer;
import io.nats.client.IterableConsumer;
import io.nats.client.JetStreamManagement;
import io.nats.client.Message;
import io.nats.client.MessageConsumer;
import io.nats.client.Nats;
import io.nats.client.api.AckPolicy;
import io.nats.client.api.ConsumerConfiguration;
import io.nats.client.api.StreamConfiguration;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

public final class Member {
    private static final int IN_HAND = 40;
    private static final int REFUSED_OF = 13;
    private static final String ORDER = "jetcluster.max_ack_pending_per_subject";

    private final CountDownLatch stop = new CountDownLatch(1);
    private final ScheduledExecutorService workers = Executors.newScheduledThreadPool(4);

    public static void main(String[] words) throws Exception {
        try (Connection nc = Nats.connect(words[1])) {
            if (words[0].equals("consumer")) {
                keyedConsumer(nc, words[2], words[3], words[4]);
            } else {
                new Member().run(nc, words[2], words[3], words[4]);
            }
        }
    }

    private static void keyedConsumer(Connection nc, String stream, String consumer, String most) throws Exception {
        JetStreamManagement manager = nc.jetStreamManagement();
        manager.addStream(StreamConfiguration.builder().name(stream).subjects(stream + ".>").replicas(3).build());
        ConsumerConfiguration config = ConsumerConfiguration.builder().durable(consumer).ackPolicy(AckPolicy.Explicit)
            .ackWait(Duration.ofSeconds(5)).metadata(Map.of(ORDER, most)).build();
        for (int i = 0; i < 2; i++) { // the second time it is there
            String got = manager.addOrUpdateConsumer(stream, config).getConsumerConfiguration().getMetadata().get(ORDER);
            if (!most.equals(got)) throw new IllegalStateException("metadata: " + got);
        }
    }

    private void run(Connection nc, String stream, String consumer, String way) throws Exception {
        Thread input = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (java.io.IOException error) {
                System.err.println(error);
            }
            stop.countDown();
        });
        input.setDaemon(true);
        input.start();
        ConsumerContext context = nc.getConsumerContext(stream, consumer);
        switch (way) {
            case "consume" -> consume(context);
            case "iterate" -> iterate(context);
            case "fetch" -> fetch(context);
            default -> throw new IllegalArgumentException(way);
        }
        workers.shutdown();
        if (!workers.awaitTermination(10, TimeUnit.SECONDS)) throw new IllegalStateException("workers go on");
        nc.flush(Duration.ofSeconds(10));
        System.out.println("ended");
    }

    private static ConsumeOptions options() {
        return ConsumeOptions.builder().batchSize(IN_HAND).expiresIn(2000).build(); // `stop` waits for that
    }

    private void consume(ConsumerContext context) throws Exception {
        MessageConsumer consumer = context.consume(options(), this::take);
        stop.await();
        consumer.stop();
        while (!consumer.isFinished()) Thread.sleep(10);
    }

    private void iterate(ConsumerContext context) throws Exception {
        IterableConsumer consumer = context.iterate(options());
        while (!consumer.isFinished()) {
            if (stop.getCount() == 0 && !consumer.isStopped()) consumer.stop();
            Message msg = consumer.nextMessage(Duration.ofMillis(100));
            if (msg != null) take(msg);
        }
    }

    private void fetch(ConsumerContext context) throws Exception {
        while (stop.getCount() > 0) {
            FetchConsumer batch = context.fetch(FetchConsumeOptions.builder().maxMessages(IN_HAND).expiresIn(1000).build());
            for (Message msg = batch.nextMessage(); msg != null; msg = batch.nextMessage()) take(msg);
            batch.close();
        }
    }

    // Takes a message into a worker, so several are in hand at a time.
    private void take(Message msg) {
        long seq = msg.metaData().streamSequence();
        long deliveries = msg.metaData().deliveredCount();
        System.out.println("got " + seq + " " + msg.getSubject() + " " + deliveries);
        workers.schedule(() -> {
            if (deliveries == 1 && seq % REFUSED_OF == 0) {
                System.out.println("nak " + seq);
                msg.nak();
                return;
            }
            System.out.println("ack " + seq);
            msg.ack();
        }, seq * 7919 % 5, TimeUnit.MILLISECONDS);
    }
}
