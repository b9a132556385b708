package ai.triptych.client;

import ai.triptych.v1.ChatMessage;
import ai.triptych.v1.ContentPart;
import ai.triptych.v1.MediaItem;

/** Messages of chats, for the usual cases. The builders of {@code ai.triptych.v1} make all others. */
public final class Messages {
  private Messages() {}

  /**
   * A message of the system: instructions.
   *
   * @param text its text
   * @return the message
   */
  public static ChatMessage system(String text) {
    return message("system", text);
  }

  /**
   * A message of the user.
   *
   * @param text its text
   * @param media pictures, sounds and videos, which the model sees before the text
   * @return the message
   */
  public static ChatMessage user(String text, MediaItem... media) {
    return message("user", text, media);
  }

  /**
   * A message of the assistant, for example an earlier answer.
   *
   * @param text its text
   * @return the message
   */
  public static ChatMessage assistant(String text) {
    return message("assistant", text);
  }

  private static ChatMessage message(String role, String text, MediaItem... media) {
    ChatMessage.Builder message = ChatMessage.newBuilder().setRole(role);
    for (MediaItem item : media) message.addContent(ContentPart.newBuilder().setMedia(item));
    return message.addContent(ContentPart.newBuilder().setText(text)).build();
  }
}
