package triptych

import (
	"fmt"
	"os"

	triptychv1 "github.com/triptych-ai/triptych/gen/go/triptych/v1"
)

// Message returns a message of a conversation: its parts in the order in which the model sees them.
//
//	picture, err := triptych.ImageFile("shapes.png")
//	message := triptych.Message("user", triptych.Media(picture), triptych.Text("Where is the triangle?"))
func Message(role string, parts ...*triptychv1.ContentPart) *triptychv1.ChatMessage {
	return &triptychv1.ChatMessage{Role: role, Content: parts}
}

// Text returns a part of a message that is text.
func Text(text string) *triptychv1.ContentPart {
	return &triptychv1.ContentPart{Part: &triptychv1.ContentPart_Text{Text: text}}
}

// Media returns a part of a message that is a picture, a sound or a video.
func Media(item *triptychv1.MediaItem) *triptychv1.ContentPart {
	return &triptychv1.ContentPart{Part: &triptychv1.ContentPart_Media{Media: item}}
}

// ImageFile reads a picture. It travels inside the request, which has at most 64 MiB.
func ImageFile(path string) (*triptychv1.MediaItem, error) {
	return mediaFile(triptychv1.Modality_MODALITY_IMAGE, path)
}

// AudioFile reads a sound, as ImageFile does a picture.
func AudioFile(path string) (*triptychv1.MediaItem, error) {
	return mediaFile(triptychv1.Modality_MODALITY_AUDIO, path)
}

// VideoFile reads a video, as ImageFile does a picture.
func VideoFile(path string) (*triptychv1.MediaItem, error) {
	return mediaFile(triptychv1.Modality_MODALITY_VIDEO, path)
}

func mediaFile(modality triptychv1.Modality, path string) (*triptychv1.MediaItem, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("triptych: media: %w", err)
	}
	return &triptychv1.MediaItem{Modality: modality, Source: &triptychv1.MediaItem_Data{Data: data}}, nil
}
