package ai.triptych.client;

import ai.triptych.v1.MediaItem;
import ai.triptych.v1.MediaReport;
import ai.triptych.v1.Modality;
import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.UnsafeByteOperations;
import io.grpc.Metadata;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** Media of requests. A file travels inside the request, which has at most 64 MiB. */
public final class Media {
  private Media() {}

  /**
   * A picture from a file: JPEG, PNG ...
   *
   * @param file its path
   * @return the item
   * @throws IOException if the file cannot be read
   */
  public static MediaItem image(Path file) throws IOException {
    return item(Modality.MODALITY_IMAGE, file);
  }

  /**
   * A picture from the bytes of a file.
   *
   * @param file all of its bytes
   * @return the item
   */
  public static MediaItem image(byte[] file) {
    return item(Modality.MODALITY_IMAGE, ByteString.copyFrom(file));
  }

  /**
   * A sound from a file: WAV, MP3 ...
   *
   * @param file its path
   * @return the item
   * @throws IOException if the file cannot be read
   */
  public static MediaItem audio(Path file) throws IOException {
    return item(Modality.MODALITY_AUDIO, file);
  }

  /**
   * A sound from the bytes of a file.
   *
   * @param file all of its bytes
   * @return the item
   */
  public static MediaItem audio(byte[] file) {
    return item(Modality.MODALITY_AUDIO, ByteString.copyFrom(file));
  }

  /**
   * A video from a file: MP4 ...
   *
   * @param file its path
   * @return the item
   * @throws IOException if the file cannot be read
   */
  public static MediaItem video(Path file) throws IOException {
    return item(Modality.MODALITY_VIDEO, file);
  }

  /**
   * A video from the bytes of a file.
   *
   * @param file all of its bytes
   * @return the item
   */
  public static MediaItem video(byte[] file) {
    return item(Modality.MODALITY_VIDEO, ByteString.copyFrom(file));
  }

  /**
   * The reports on media in trailing metadata. The server leaves them out if they have more than 4 KiB.
   *
   * @param trailers trailing metadata of a call, see {@link RequestOptions.Builder#onTrailers}
   * @return the reports, in the order of the media
   */
  public static List<MediaReport> reports(Metadata trailers) {
    List<MediaReport> reports = new ArrayList<>();
    Iterable<byte[]> entries = trailers.getAll(Headers.MEDIA);
    if (entries == null) return reports;
    for (byte[] entry : entries) {
      try {
        reports.add(MediaReport.parseFrom(entry));
      } catch (InvalidProtocolBufferException e) {
        continue; // a report is extra information, so a broken one must not fail the call
      }
    }
    return reports;
  }

  private static MediaItem item(Modality modality, Path file) throws IOException {
    // Nobody else has the array, so it need not be copied.
    return item(modality, UnsafeByteOperations.unsafeWrap(Files.readAllBytes(file)));
  }

  private static MediaItem item(Modality modality, ByteString data) {
    return MediaItem.newBuilder().setModality(modality).setData(data).build();
  }
}
