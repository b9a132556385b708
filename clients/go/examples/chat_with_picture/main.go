// Streams an answer about a picture: chat_with_picture [-picture FILE] [QUESTION]. The address is that of TRIPTYCH_ADDRESS.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"

	triptych "github.com/triptych-ai/triptych/clients/go"
	triptychv1 "github.com/triptych-ai/triptych/gen/go/triptych/v1"
	"google.golang.org/protobuf/proto"
)

func main() {
	picture := flag.String("picture", "examples/three-shapes.png", "file to ask about")
	flag.Parse()
	question := "Where is the triangle?"
	if flag.NArg() > 0 {
		question = flag.Arg(0)
	}
	// Ctrl-C cancels the call, and the server stops its work.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := ask(ctx, *picture, question); err != nil {
		log.Fatal(err)
	}
}

func ask(ctx context.Context, picture, question string) error {
	client, err := triptych.NewClient()
	if err != nil {
		return err
	}
	defer client.Close()
	item, err := triptych.ImageFile(picture)
	if err != nil {
		return err
	}
	stream, err := client.ChatStream(ctx, &triptychv1.ChatStreamRequest{Chat: &triptychv1.ChatRequest{
		Messages: []*triptychv1.ChatMessage{triptych.Message("user", triptych.Media(item), triptych.Text(question))},
		Options:  &triptychv1.GenerationOptions{Sampling: &triptychv1.SamplingParams{Temperature: proto.Float32(0)}},
	}})
	if err != nil {
		return err
	}
	defer stream.Close()
	for stream.Next() {
		fmt.Print(stream.Text())
	}
	fmt.Println()
	usage := stream.Response().GetUsage()
	fmt.Fprintf(os.Stderr, "%d of %d prompt tokens are the picture's\n", usage.GetImageTokens(), usage.GetPromptTokens())
	return stream.Err()
}
