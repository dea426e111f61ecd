//! Whole answers, and the usage and endings that streams have too.

use serde::Serialize;
use serde_json::value::RawValue;
use strait_contract::model::Tokens;

use super::chat_request::{Call, calls};
use super::members::{Members, malformed};
use super::messages_request::{Block, blocks, read_call};
use super::request::{Part, Raw};
use super::{LeftOut, Refused, json};
use crate::translate::request;

const CHAT: &str = "OpenAI chat completions";
const MESSAGES: &str = "Anthropic messages";

/// What an answer says, in neither API's words.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answered {
    pub(super) id: String,
    pub(super) model: String,
    pub(super) parts: Vec<Part>,
    pub(super) end: End,
    pub(super) used: Tokens,
}

/// Why an answer ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    Done,
    /// A stop sequence; chat doesn't say which, nor that it was one.
    Stopped(Option<String>),
    Length,
    Calls,
    Refusal,
}

impl End {
    pub(super) fn of_chat(word: &str) -> Option<Self> {
        match word {
            "stop" => Some(Self::Done),
            "length" => Some(Self::Length),
            "tool_calls" => Some(Self::Calls),
            "content_filter" => Some(Self::Refusal),
            _ => None,
        }
    }

    pub(super) fn of_messages(word: &str, sequence: Option<String>) -> Option<Self> {
        match word {
            "end_turn" => Some(Self::Done),
            "stop_sequence" => Some(Self::Stopped(sequence)),
            "max_tokens" | "model_context_window_exceeded" => Some(Self::Length),
            "tool_use" => Some(Self::Calls),
            "refusal" => Some(Self::Refusal),
            _ => None,
        }
    }

    pub(super) fn chat(&self) -> &'static str {
        match self {
            Self::Done | Self::Stopped(_) => "stop",
            Self::Length => "length",
            Self::Calls => "tool_calls",
            Self::Refusal => "content_filter",
        }
    }

    pub(super) fn messages(&self) -> &'static str {
        match self {
            Self::Done => "end_turn",
            Self::Stopped(_) => "stop_sequence",
            Self::Length => "max_tokens",
            Self::Calls => "tool_use",
            Self::Refusal => "refusal",
        }
    }

    pub(super) fn sequence(&self) -> Option<&str> {
        if let Self::Stopped(sequence) = self { sequence.as_deref() } else { None }
    }
}

/// Usage as messages count it: input without what the cache had a part in. Of streams, later numbers replace earlier.
#[derive(Clone, Debug, Default)]
pub(super) struct MessagesUsage {
    input: u64,
    read: u64,
    write: u64,
    output: u64,
    reasoning: u64,
}

/// A count; one that lies (negative, a fraction) is as good as none.
fn count(of: &mut Members<'_>, name: &str) -> Option<u64> {
    of.take(name).and_then(|raw| serde_json::from_str(raw.get()).ok())
}

impl MessagesUsage {
    pub(super) fn merge(&mut self, mut of: Members<'_>) {
        let mut set = |name: &str, to: &mut u64| *to = count(&mut of, name).unwrap_or(*to);
        set("input_tokens", &mut self.input);
        set("cache_read_input_tokens", &mut self.read);
        set("cache_creation_input_tokens", &mut self.write);
        set("output_tokens", &mut self.output);
        if let Ok(Some(mut details)) = of.object("output_tokens_details") {
            self.reasoning = count(&mut details, "thinking_tokens").unwrap_or(self.reasoning);
        }
    }

    pub(super) fn tokens(&self) -> Tokens {
        Tokens {
            input: self.input.saturating_add(self.read).saturating_add(self.write),
            output: self.output,
            cache_read: self.read,
            cache_write: self.write,
            reasoning: self.reasoning,
            ..Tokens::default()
        }
    }
}

/// Usage as chat counts it.
pub(super) fn chat_usage(mut of: Members<'_>) -> Tokens {
    let mut used = Tokens {
        input: count(&mut of, "prompt_tokens").unwrap_or(0),
        output: count(&mut of, "completion_tokens").unwrap_or(0),
        ..Tokens::default()
    };
    if let Ok(Some(mut details)) = of.object("prompt_tokens_details") {
        used.cache_read = count(&mut details, "cached_tokens").unwrap_or(0);
        used.cache_write = count(&mut details, "cache_write_tokens").unwrap_or(0);
    }
    if let Ok(Some(mut details)) = of.object("completion_tokens_details") {
        used.reasoning = count(&mut details, "reasoning_tokens").unwrap_or(0);
    }
    used
}

#[derive(Debug, Serialize)]
pub(super) struct OutChatUsage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: OutputDetails,
}

#[derive(Debug, Serialize)]
struct PromptDetails {
    cached_tokens: u64,
    #[serde(skip_serializing_if = "none")]
    cache_write_tokens: u64,
}

#[derive(Debug, Serialize)]
struct ThinkingDetails {
    thinking_tokens: u64,
}

#[derive(Debug, Serialize)]
struct OutputDetails {
    reasoning_tokens: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn none(count: &u64) -> bool {
    *count == 0
}

#[derive(Debug, Serialize)]
pub(super) struct OutMessagesUsage {
    input_tokens: u64,
    cache_creation_input_tokens: u64,
    cache_read_input_tokens: u64,
    output_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_tokens_details: Option<ThinkingDetails>,
}

pub(super) fn write_chat_usage(used: &Tokens) -> OutChatUsage {
    OutChatUsage {
        prompt_tokens: used.input,
        completion_tokens: used.output,
        total_tokens: used.input.saturating_add(used.output),
        prompt_tokens_details: PromptDetails {
            cached_tokens: used.cache_read,
            cache_write_tokens: used.cache_write,
        },
        completion_tokens_details: OutputDetails { reasoning_tokens: used.reasoning },
    }
}

pub(super) fn write_messages_usage(used: &Tokens) -> OutMessagesUsage {
    OutMessagesUsage {
        input_tokens: used.input.saturating_sub(used.cache_read).saturating_sub(used.cache_write),
        cache_creation_input_tokens: used.cache_write,
        cache_read_input_tokens: used.cache_read,
        output_tokens: used.output,
        output_tokens_details: (used.reasoning > 0)
            .then_some(ThinkingDetails { thinking_tokens: used.reasoning }),
    }
}

pub(super) fn read_messages(raw: &RawValue, left_out: &mut LeftOut) -> Result<Answered, Refused> {
    let mut of = Members::read("", raw)?;
    let mut parts = Vec::new();
    for (at, block) in of.list("content")?.ok_or_else(|| malformed("/content", "a list"))? {
        let mut block = Members::read(at, block)?;
        match block.need_text("type")?.as_str() {
            "text" => {
                parts.push(Part::Text(block.need_text("text")?));
                block.name_left(left_out);
            }
            "tool_use" => parts.push(read_call(block, left_out)?),
            // Chat hides reasoning and says how long it was.
            "thinking" | "redacted_thinking" => left_out.name(block.here()),
            _ => return Err(unknown_block(block.here())),
        }
    }
    let word = of.need_text("stop_reason")?;
    let end = End::of_messages(&word, of.text("stop_sequence")?)
        .ok_or_else(|| unknown_end("/stop_reason", CHAT))?;
    let mut used = MessagesUsage::default();
    if let Some(usage) = of.object("usage")? {
        used.merge(usage);
    }
    let (id, model) = (of.need_text("id")?, of.need_text("model")?);
    of.only("type", &["\"message\""], CHAT, "an answer is a message")?;
    of.take("role");
    of.name_left(left_out);
    Ok(Answered { id, model, parts, end, used: used.tokens() })
}

pub(super) fn unknown_block(at: &str) -> Refused {
    Refused::Untranslatable {
        at: at.to_owned(),
        to: CHAT,
        why: "of blocks only text and tool_use have a counterpart",
    }
}

pub(super) fn unknown_end(at: &str, to: &'static str) -> Refused {
    Refused::Untranslatable { at: at.to_owned(), to, why: "no reason to end there means the same" }
}

pub(super) fn read_chat(raw: &RawValue, left_out: &mut LeftOut) -> Result<Answered, Refused> {
    let mut of = Members::read("", raw)?;
    let choices = of.list("choices")?.unwrap_or_default();
    let [(at, choice)] = choices.as_slice() else {
        return Err(malformed("/choices", "a list of one choice"));
    };
    let mut choice = Members::read(at.as_str(), choice)?;
    let word = choice.need_text("finish_reason")?;
    let mut end = End::of_chat(&word).ok_or_else(|| unknown_end(&choice.at("finish_reason"), MESSAGES))?;
    let mut message = choice.need_object("message")?;
    let mut parts = Vec::new();
    parts.extend(message.text("content")?.filter(|text| !text.is_empty()).map(Part::Text));
    if let Some(refusal) = message.text("refusal")? {
        parts.push(Part::Text(refusal));
        end = End::Refusal;
    }
    for (at, call) in message.list("tool_calls")?.unwrap_or_default() {
        parts.push(read_chat_call(Members::read(at, call)?)?);
    }
    let why = "answers are text and tool calls";
    message.only("audio", &[], MESSAGES, why)?;
    message.only("function_call", &[], MESSAGES, why)?;
    message.take("role");
    message.name_left(left_out);
    choice.take("index");
    choice.name_left(left_out);
    let used = of.object("usage")?.map(chat_usage).unwrap_or_default();
    let (id, model) = (of.need_text("id")?, of.need_text("model")?);
    of.take("object");
    of.take("created");
    of.name_left(left_out);
    Ok(Answered { id, model, parts, end, used })
}

fn read_chat_call(mut call: Members<'_>) -> Result<Part, Refused> {
    call.only("type", &["\"function\""], MESSAGES, "only functions are called there")?;
    let id = request::name(call.need_text("id")?, 128, call.at("id"))?;
    let mut function = call.need_object("function")?;
    let name = request::name(function.need_text("name")?, 64, function.at("name"))?;
    let arguments = Raw::object(&function.need_text("arguments")?);
    // Cut by its bound of tokens, a model writes half an object: messages can't hold it.
    let arguments = arguments.ok_or_else(|| Refused::Untranslatable {
        at: function.at("arguments"),
        to: MESSAGES,
        why: "arguments are a JSON object",
    })?;
    Ok(Part::Call { id, name, arguments })
}

#[derive(Serialize)]
struct OutChat<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: [OutChoice<'a>; 1],
    usage: OutChatUsage,
}

#[derive(Serialize)]
struct OutChoice<'a> {
    index: u8,
    message: OutMessage<'a>,
    logprobs: Option<()>,
    finish_reason: &'static str,
}

#[derive(Serialize)]
struct OutMessage<'a> {
    role: &'static str,
    content: Option<String>,
    refusal: Option<()>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call<'a>>,
}

pub(super) fn write_chat(said: &Answered, now: u64) -> Vec<u8> {
    let texts =
        || said.parts.iter().filter_map(|part| if let Part::Text(text) = part { Some(text) } else { None });
    let content = texts().next().is_some().then(|| texts().map(String::as_str).collect());
    let message = OutMessage { role: "assistant", content, refusal: None, tool_calls: calls(&said.parts) };
    let finish_reason = said.end.chat();
    json(&OutChat {
        id: &said.id,
        object: "chat.completion",
        created: now,
        model: &said.model,
        choices: [OutChoice { index: 0, message, logprobs: None, finish_reason }],
        usage: write_chat_usage(&said.used),
    })
}

#[derive(Serialize)]
struct OutMessages<'a> {
    id: &'a str,
    r#type: &'static str,
    role: &'static str,
    model: &'a str,
    content: Vec<Block<'a>>,
    stop_reason: &'static str,
    stop_sequence: Option<&'a str>,
    usage: OutMessagesUsage,
}

pub(super) fn write_messages(said: &Answered) -> Vec<u8> {
    json(&OutMessages {
        id: &said.id,
        r#type: "message",
        role: "assistant",
        model: &said.model,
        content: blocks(&said.parts),
        stop_reason: said.end.messages(),
        stop_sequence: said.end.sequence(),
        usage: write_messages_usage(&said.used),
    })
}
