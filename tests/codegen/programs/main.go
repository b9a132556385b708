package main

import (
	"fmt"

	triptychv1 "GO_PACKAGE"
	"google.golang.org/protobuf/proto"
)

func main() {
	temperature, maxTokens := float32(0.5), uint32(8)
	request := &triptychv1.ChatRequest{
		Model: "m",
		Messages: []*triptychv1.ChatMessage{{
			Role:    "user",
			Content: []*triptychv1.ContentPart{{Part: &triptychv1.ContentPart_Text{Text: "Hi"}}},
		}},
		Options: &triptychv1.GenerationOptions{
			Sampling: &triptychv1.SamplingParams{Temperature: &temperature, MaxTokens: &maxTokens},
		},
	}
	bytes, err := proto.Marshal(request)
	if err != nil {
		panic(err)
	}
	var client triptychv1.GenerationServiceClient = triptychv1.NewGenerationServiceClient(nil)
	service := triptychv1.File_triptych_v1_generation_proto.Services().ByName("GenerationService")
	if client != nil {
		fmt.Printf("%s %x\n", service.FullName(), bytes)
	}
}
