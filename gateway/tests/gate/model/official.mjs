// The official JavaScript clients of model APIs, set up by nothing but base URL and key; prints what they saw as JSON.
// Run with the folder of their packages as the working directory. ADDRESS is what a run's resolver would say of the
// gateway's name.
import Anthropic from "@anthropic-ai/sdk";
import { GoogleGenAI } from "@google/genai";
import OpenAI from "openai";
import dns from "node:dns";

const { ADDRESS: gateway } = process.env;
const lookup = dns.lookup;
dns.lookup = (name, options, done) => lookup(name === "strait.internal" ? gateway : name, options, done);
const saw = {};

async function attempt(name, call) {
  try {
    saw[name] = await call();
  } catch (error) {
    saw[name] = { failed: error.constructor.name, status: error.status, said: String(error.message ?? error) };
  }
}

const hello = [{ role: "user", content: "hello" }];
const chat = new OpenAI();
await attempt("chat_whole", async () => {
  const got = await chat.chat.completions.create({ model: "gpt-5", messages: hello });
  return [got.choices[0].message.content, got.usage.prompt_tokens, got.usage.completion_tokens];
});
await attempt("chat_stream", async () => {
  let [text, chunks, usages] = ["", 0, 0];
  for await (const chunk of await chat.chat.completions.create({ model: "gpt-5", messages: hello, stream: true })) {
    text += chunk.choices[0]?.delta?.content ?? "";
    chunks += 1;
    usages += chunk.usage ? 1 : 0;
  }
  return [text, chunks > 3, usages];
});
await attempt("responses", async () => {
  const got = await chat.responses.create({ model: "gpt-5", input: "hello" });
  return [got.output_text, got.usage.input_tokens, got.usage.output_tokens];
});
const messages = new Anthropic();
await attempt("messages_stream", async () => {
  const got = await messages.messages
    .stream({ model: "claude-sonnet-4-5", max_tokens: 99, messages: hello })
    .finalMessage();
  return [got.content[0].text, got.usage.input_tokens, got.usage.output_tokens];
});
const gemini = new GoogleGenAI({});
await attempt("gemini_whole", async () => {
  const got = await gemini.models.generateContent({ model: "gemini-2.5-pro", contents: "hello" });
  return [got.text, got.usageMetadata?.promptTokenCount, got.usageMetadata?.candidatesTokenCount];
});
console.log(JSON.stringify(saw));
