package ai.triptych.client;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import ai.triptych.v1.ChatMessage;
import ai.triptych.v1.MediaItem;
import ai.triptych.v1.Modality;
import io.grpc.Metadata;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Media and messages of requests. */
public class MediaTest {
  @Rule public final TemporaryFolder folder = new TemporaryFolder();

  @Test
  public void readsFiles() throws IOException {
    byte[] bytes = {1, 2, 3};
    Path file = folder.newFile().toPath();
    Files.write(file, bytes);
    assertItem(Modality.MODALITY_IMAGE, bytes, Media.image(file));
    assertItem(Modality.MODALITY_AUDIO, bytes, Media.audio(file));
    assertItem(Modality.MODALITY_VIDEO, bytes, Media.video(file));
    assertItem(Modality.MODALITY_IMAGE, bytes, Media.image(bytes));
    assertItem(Modality.MODALITY_AUDIO, bytes, Media.audio(bytes));
    assertItem(Modality.MODALITY_VIDEO, bytes, Media.video(bytes));
  }

  private static void assertItem(Modality modality, byte[] data, MediaItem item) {
    assertEquals(modality, item.getModality());
    assertArrayEquals(data, item.getData().toByteArray());
  }

  @Test
  public void aMissingFileIsNamed() {
    Path missing = folder.getRoot().toPath().resolve("missing.png");
    IOException error = assertThrows(IOException.class, () -> Media.image(missing));
    assertTrue(error.getMessage().contains("missing.png"));
  }

  @Test
  public void mediaComeBeforeTheText() {
    ChatMessage message = Messages.user("What is this?", Media.image(new byte[1]), Media.audio(new byte[2]));
    assertEquals("user", message.getRole());
    assertEquals(Modality.MODALITY_AUDIO, message.getContent(1).getMedia().getModality());
    assertEquals("What is this?", message.getContent(2).getText());
    assertEquals("system", Messages.system("Be brief.").getRole());
    assertEquals("assistant", Messages.assistant("Yes.").getRole());
  }

  @Test
  public void noReportsAreAnEmptyList() {
    assertTrue(Media.reports(new Metadata()).isEmpty());
  }
}
