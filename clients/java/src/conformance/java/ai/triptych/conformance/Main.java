package ai.triptych.conformance;

import ai.triptych.conformance.v1.Call;
import ai.triptych.conformance.v1.Outcome;
import com.google.protobuf.util.JsonFormat;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * The client under test of the conformance cases: a line of JSON with a Call comes in, a line of JSON with its Outcome goes out.
 */
final class Main {
  private Main() {}

  public static void main(String[] arguments) throws IOException {
    JsonFormat.Printer printer = JsonFormat.printer().omittingInsignificantWhitespace();
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8); // println flushes: the runner waits for it
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      Call.Builder call = Call.newBuilder();
      JsonFormat.parser().merge(line, call);
      Outcome outcome = new CallRunner(call.build()).run();
      out.println(printer.print(outcome));
    }
  }
}
