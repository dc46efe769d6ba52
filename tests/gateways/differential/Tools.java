import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.utils.internals.Exit;
import org.apache.kafka.tools.ConfigCommand;
import org.apache.kafka.tools.DeleteRecordsCommand;
import org.apache.kafka.tools.TopicCommand;
import org.apache.kafka.tools.TransactionsCommand;
import org.apache.kafka.tools.consumer.group.ConsumerGroupCommand;

/** Kafka's shell tools, one after the other in one process: each line of input is a tool and its arguments. */
public class Tools {
  private static final class Ended extends RuntimeException {
    Ended(int code) {
      super(null, null, false, false);
      ended = ended == null ? code : ended; // some tools take their own end for an error
    }
  }

  private static Integer ended;

  public static void main(String[] given) throws Exception {
    Exit.setExitProcedure((code, message) -> { throw new Ended(code); });
    Exit.setHaltProcedure((code, message) -> { throw new Ended(code); });
    PrintStream out = System.out, err = System.err;
    for (String line : new String(System.in.readAllBytes(), StandardCharsets.UTF_8).split("\n")) {
      String[] words = line.split(" ");
      String[] arguments = new String[words.length + 1];
      arguments[0] = "--bootstrap-server";
      arguments[1] = given[0];
      System.arraycopy(words, 1, arguments, 2, words.length - 1);
      ByteArrayOutputStream told = new ByteArrayOutputStream();
      System.setOut(new PrintStream(told, true));
      System.setErr(new PrintStream(told, true));
      ended = null;
      try {
        run(words[0], arguments);
      } catch (Ended end) {
        // told below
      } catch (Throwable failed) {
        System.out.println(failed);
        ended = 1;
      }
      System.setOut(out);
      System.setErr(err);
      out.println("$ " + line);
      out.print(told);
      out.println("= " + (ended == null ? 0 : ended));
      out.flush();
    }
  }

  private static void run(String tool, String[] arguments) throws Exception {
    switch (tool) {
      case "kafka-topics" -> TopicCommand.main(arguments);
      case "kafka-configs" -> ConfigCommand.main(arguments);
      case "kafka-consumer-groups" -> ConsumerGroupCommand.main(arguments);
      case "kafka-delete-records" -> DeleteRecordsCommand.main(arguments);
      case "kafka-transactions" -> TransactionsCommand.main(arguments);
      default -> throw new IllegalArgumentException(tool);
    }
  }
}
