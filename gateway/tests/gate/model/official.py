"""The official Python clients of model APIs, set up by nothing but base URL and key; prints what they saw as JSON."""

import json
import os
import socket

ADDRESS = os.environ.get("ADDRESS")
lookup = socket.getaddrinfo
# What a run's resolver would say of the gateway's name.
socket.getaddrinfo = lambda host, *rest, **named: lookup(
    ADDRESS if host in ("strait.internal", b"strait.internal") else host, *rest, **named
)

import anthropic
import openai
from google import genai

SAW = {}
TOOL = {"type": "object", "properties": {"city": {"type": "string"}}}


def attempt(call):
    try:
        SAW[call.__name__] = call()
    except Exception as error:
        SAW[call.__name__] = {"failed": type(error).__name__, "status": getattr(error, "status_code", None), "said": str(error)}


def numbers(usage, *names):
    return [getattr(usage, name, None) for name in names] if usage else None


chat = openai.OpenAI()


@attempt
def chat_whole():
    got = chat.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "hello"}])
    return [got.choices[0].message.content, numbers(got.usage, "prompt_tokens", "completion_tokens")]


@attempt
def chat_stream():
    stream = chat.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "hello"}], stream=True)
    chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    return [text, len(chunks) > 3, [chunk.usage is not None for chunk in chunks].count(True)]


@attempt
def chat_tool():
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": TOOL}}]
    got = chat.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "weather"}], tools=tools)
    call = got.choices[0].message.tool_calls[0].function
    return [call.name, json.loads(call.arguments)]


@attempt
def responses_stream():
    with chat.responses.stream(model="gpt-5", input="hello") as stream:
        kinds = [event.type for event in stream]
        got = stream.get_final_response()
    return [got.output_text, numbers(got.usage, "input_tokens", "output_tokens"), kinds[-1]]


messages = anthropic.Anthropic()


@attempt
def messages_whole():
    got = messages.messages.create(model="claude-sonnet-4-5", max_tokens=99, messages=[{"role": "user", "content": "hello"}])
    return [got.content[0].text, numbers(got.usage, "input_tokens", "output_tokens")]


@attempt
def messages_stream():
    with messages.messages.stream(model="claude-sonnet-4-5", max_tokens=99, messages=[{"role": "user", "content": "hello"}]) as stream:
        text = "".join(stream.text_stream)
        got = stream.get_final_message()
    return [text, numbers(got.usage, "input_tokens", "output_tokens")]


gemini = genai.Client(http_options={"api_version": "v1beta"})


@attempt
def gemini_whole():
    got = gemini.models.generate_content(model="gemini-2.5-pro", contents="hello")
    return [got.text, numbers(got.usage_metadata, "prompt_token_count", "candidates_token_count")]


@attempt
def gemini_stream():
    chunks = list(gemini.models.generate_content_stream(model="gemini-2.5-pro", contents="hello"))
    return ["".join(chunk.text or "" for chunk in chunks), len(chunks) > 1]


print(json.dumps(SAW))
