"""PreprocessService and DetokenizeService: the stages alone. None of them needs an engine."""

from __future__ import annotations

import asyncio

import pytest
from grpc.aio import AioRpcError
from support.builders.frontend import chat_request, frontend_bench, ids
from support.builders.tokenizer import IM_END_ID, IM_START_ID, MAX_MODEL_LEN, VOCAB_SIZE, metaspace_tokenizer, write_model
from triptych.errors import InvalidRequestError, TriptychError
from triptych.status import from_rpc_error
from triptych.v1 import detokenize_pb2, generation_pb2, preprocess_pb2
from triptych_common.rpc.structs import to_struct

PreprocessRequest = preprocess_pb2.PreprocessRequest
TokenizeRequest = preprocess_pb2.TokenizeRequest
DetokenizeRequest = detokenize_pb2.DetokenizeRequest
StreamRequest = detokenize_pb2.DetokenizeStreamRequest
TEXT = "The quick 😀 fox é <|im_end|>\n"


async def error_of(call) -> TriptychError:
    with pytest.raises(AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


async def test_preprocess_tells_what_chat_would_send_to_the_engine() -> None:
    text = "Hi <|im_end|> there"
    async with frontend_bench() as bench:
        preprocessed = await bench.preprocess.Preprocess(PreprocessRequest(chat=chat_request(text)))
        assert [response async for response in bench.chat(chat_request(text))]
        (request,) = bench.engine.requests
    assert list(preprocessed.token_ids) == list(request.prompt_token_ids)
    assert preprocessed.prompt == f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    assert preprocessed.max_model_len == MAX_MODEL_LEN
    assert list(preprocessed.token_ids).count(IM_END_ID) == 1


async def test_template_variables_and_prompt_ends_reach_the_template() -> None:
    async with frontend_bench(ready=False) as bench:
        styled = chat_request(template_kwargs=to_struct({"style": "loud"}), add_generation_prompt=False)
        assistant = generation_pb2.ChatMessage(role="assistant", content=[generation_pb2.ContentPart(text="So")])
        continued = chat_request(messages=[*chat_request().messages, assistant], continue_final_message=True)
        prompts = [(await bench.preprocess.Preprocess(PreprocessRequest(chat=chat))).prompt for chat in (styled, continued)]
    assert prompts[0].endswith("<|im_end|>\n[loud]")
    assert prompts[1].endswith("<|im_start|>assistant\nSo")


async def test_parts_of_a_message_stand_on_lines_of_their_own() -> None:
    parts = [generation_pb2.ContentPart(text=text) for text in ("<|im_", "start|>")]
    message = generation_pb2.ChatMessage(role="user", name="Ann", content=parts)
    async with frontend_bench(ready=False) as bench:
        response = await bench.preprocess.Preprocess(PreprocessRequest(chat=chat_request(messages=[message])))
    assert "user Ann\n<|im_\nstart|><|im_end|>" in response.prompt
    assert list(response.token_ids).count(IM_START_ID) == 2


async def test_preprocess_takes_completions_by_text_and_by_ids() -> None:
    async with frontend_bench(ready=False) as bench:
        by_text = generation_pb2.CompleteRequest(text=TEXT)
        by_ids = generation_pb2.CompleteRequest(token_ids=generation_pb2.TokenIds(ids=ids(TEXT)))
        for complete in (by_text, by_ids):
            response = await bench.preprocess.Preprocess(PreprocessRequest(complete=complete))
            assert (response.prompt, list(response.token_ids)) == (TEXT, ids(TEXT))
        assert (await error_of(bench.preprocess.Preprocess(PreprocessRequest()))).field == "input"


@pytest.mark.parametrize("parse", [True, False])
async def test_tokenize_reads_special_tokens_unless_told_otherwise(parse: bool) -> None:
    async with frontend_bench(ready=False) as bench:
        response = await bench.preprocess.Tokenize(TokenizeRequest(text=TEXT, parse_special_tokens=parse))
        text = await bench.detokenize.Detokenize(DetokenizeRequest(token_ids=response.token_ids, skip_special_tokens=False))
    assert (IM_END_ID in response.token_ids) == parse
    assert len(response.tokens) == len(response.token_ids)
    assert text.text == TEXT


@pytest.mark.parametrize("add", [True, False])
@pytest.mark.parametrize("parse", [True, False])
async def test_tokenize_adds_what_the_tokenizer_adds(tmp_path, add: bool, parse: bool) -> None:
    path = write_model(tmp_path, metaspace_tokenizer(), None, {"bos_token": "<s>", "eos_token": "</s>"})
    async with frontend_bench(model=path, ready=False) as bench:
        request = TokenizeRequest(text="Hello", add_special_tokens=add, parse_special_tokens=parse)
        response = await bench.preprocess.Tokenize(request)
    assert list(response.tokens) == [*(["<s>"] if add else []), "▁", *"Hello"]


async def test_detokenize_skips_special_tokens_on_request() -> None:
    async with frontend_bench(ready=False) as bench:
        request = DetokenizeRequest(token_ids=ids(TEXT), skip_special_tokens=True)
        assert (await bench.detokenize.Detokenize(request)).text == TEXT.replace("<|im_end|>", "")
        assert (await bench.detokenize.Detokenize(DetokenizeRequest())).text == ""


async def test_ids_beyond_the_vocabulary_are_named() -> None:
    async with frontend_bench(ready=False) as bench:
        error = await error_of(bench.detokenize.Detokenize(DetokenizeRequest(token_ids=[1, VOCAB_SIZE])))
    assert isinstance(error, InvalidRequestError)
    assert (error.field, error.value) == ("token_ids[1]", str(VOCAB_SIZE))


@pytest.mark.parametrize("size", [1, 3, 100])
async def test_a_stream_has_one_response_per_request_and_one_for_the_rest(size: int) -> None:
    token_ids = ids(TEXT)[:-1] + ids("😀")[:-1]  # ends inside a character
    chunks = [token_ids[start : start + size] for start in range(0, len(token_ids), size)]
    async with frontend_bench(ready=False) as bench:
        call = bench.detokenize.DetokenizeStream(StreamRequest(token_ids=chunk) for chunk in chunks)
        texts = [response.text async for response in call]
        whole = await bench.detokenize.Detokenize(DetokenizeRequest(token_ids=token_ids))
    assert len(texts) == len(chunks) + 1
    assert "".join(texts) == whole.text
    assert not any("\ufffd" in text for text in texts[:-1])


async def test_a_stream_without_requests_has_one_empty_response() -> None:
    async with frontend_bench(ready=False) as bench:
        call = bench.detokenize.DetokenizeStream(StreamRequest() for _ in ())
        assert [response.text async for response in call] == [""]


async def test_tokenizing_a_long_text_does_not_hold_up_others() -> None:
    """A text of seconds is tokenized in a thread; the loop answers hundreds of short ones meanwhile."""
    async with frontend_bench(ready=False, num_tokenizer_threads=2) as bench:
        long_text = TokenizeRequest(text="The quick brown fox " * 150_000)
        long_call = asyncio.ensure_future(bench.preprocess.Tokenize(long_text))
        short_calls = 0
        while not long_call.done():
            await bench.preprocess.Tokenize(TokenizeRequest(text="Hi"))
            short_calls += 1
        assert len((await long_call).token_ids) > 150_000
    assert short_calls > 50


async def test_a_template_that_does_not_end_is_ended(tmp_path) -> None:
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    source = "{% if messages[0].content == 'loop' %}" + loop + "{% endif %}{{ messages[0].content }}"
    path = write_model(tmp_path, chat_template=source)
    async with frontend_bench(model=path, ready=False, template_timeout_s=0.5, num_tokenizer_threads=1) as bench:
        error = await error_of(bench.preprocess.Preprocess(PreprocessRequest(chat=chat_request("loop"))))
        after = await bench.preprocess.Preprocess(PreprocessRequest(chat=chat_request("Hi")))
    assert isinstance(error, InvalidRequestError)
    assert error.limit == "0.5"
    assert after.prompt == "Hi", "the one thread is free again"


async def test_an_assistant_turn_may_have_no_content() -> None:
    """As OpenAI's clients send a turn that only called tools: content null."""
    async with frontend_bench() as bench:
        silent = generation_pb2.ChatMessage(role="assistant")
        messages = [*chat_request("Hi").messages, silent, *chat_request("Hello?").messages]
        response = await bench.preprocess.Preprocess(preprocess_pb2.PreprocessRequest(chat=chat_request(messages=messages)))
    assert "<|im_start|>assistant\n<|im_end|>\n<|im_start|>user\nHello?" in response.prompt
