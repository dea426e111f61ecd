//! A stream of messages as one of chat.

use serde::Serialize;

use crate::translate::answer::{
    End, MessagesUsage, OutChatUsage, unknown_block, unknown_end, write_chat_usage,
};
use crate::translate::members::{Members, malformed, whole};
use crate::translate::{LeftOut, Refused, error, json};

/// Where the stream is.
#[derive(Debug, Default)]
pub(super) struct ToChat {
    wants_usage: bool,
    created: u64,
    id: String,
    model: String,
    open: Option<Open>,
    calls: u64,
    used: MessagesUsage,
    end: Option<End>,
    state: State,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Before,
    Within,
    Ended,
}

/// The block that's being written; blocks come one after another.
#[derive(Debug)]
struct Open {
    index: u64,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Text,
    /// `begun`: whether a piece of its arguments was given.
    Call {
        number: u64,
        begun: bool,
    },
    /// Thinking: chat hides it.
    Hidden,
}

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Choice<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<OutChatUsage>>,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u8,
    delta: Delta<'a>,
    logprobs: Option<()>,
    finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[Call<'a>; 1]>,
}

#[derive(Serialize)]
struct Call<'a> {
    index: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    arguments: &'a str,
}

impl ToChat {
    pub(super) fn new(wants_usage: bool, created: u64) -> Self {
        Self { wants_usage, created, ..Self::default() }
    }

    pub(super) fn ended(&self) -> bool {
        self.state == State::Ended
    }

    pub(super) fn event(
        &mut self,
        data: &[u8],
        left_out: &mut LeftOut,
        out: &mut Vec<u8>,
    ) -> Result<(), Refused> {
        let mut of = Members::read("", whole(data)?)?;
        let kind = of.need_text("type")?;
        match (kind.as_str(), &self.state) {
            ("ping", _) => out.extend_from_slice(b": ping\n\n"),
            ("error", _) => {
                let (kind, message) = error::read_inner(of.need_object("error")?)
                    .ok_or_else(|| malformed("/error", "an error"))?;
                return Err(Refused::Upstream { kind, message });
            }
            ("message_start", State::Before) => self.start(of, out)?,
            ("content_block_start", State::Within) => self.open(of, left_out, out)?,
            ("content_block_delta", State::Within) => self.delta(of, left_out, out)?,
            ("content_block_stop", State::Within) => self.close(out),
            ("message_delta", State::Within) => self.end_of(of, left_out)?,
            ("message_stop", State::Within) => self.stop(out)?,
            (
                "message_start"
                | "content_block_start"
                | "content_block_delta"
                | "content_block_stop"
                | "message_delta"
                | "message_stop",
                _,
            ) => return Err(malformed("/type", "`message_start` once and first")),
            // Others may be added (Anthropic, "Streaming messages"): none of them is content.
            (kind, _) => left_out
                .name(format!("event {}", kind.get(..kind.floor_char_boundary(64)).unwrap_or_default())),
        }
        Ok(())
    }

    fn start(&mut self, mut of: Members<'_>, out: &mut Vec<u8>) -> Result<(), Refused> {
        let mut message = of.need_object("message")?;
        self.id = message.need_text("id")?;
        self.model = message.need_text("model")?;
        if let Some(usage) = message.object("usage")? {
            self.used.merge(usage);
        }
        self.state = State::Within;
        self.chunk(Delta { role: Some("assistant"), content: Some(""), ..Delta::default() }, out);
        Ok(())
    }

    fn open(
        &mut self,
        mut of: Members<'_>,
        left_out: &mut LeftOut,
        out: &mut Vec<u8>,
    ) -> Result<(), Refused> {
        self.close(out);
        let index = of.number("index")?.ok_or_else(|| malformed("/index", "a whole number"))?;
        let mut block = of.need_object("content_block")?;
        let kind = match block.need_text("type")?.as_str() {
            "text" => {
                self.text(&block.text("text")?.unwrap_or_default(), out);
                Kind::Text
            }
            "tool_use" => {
                let (id, name) = (block.need_text("id")?, block.need_text("name")?);
                let number = self.calls;
                self.calls += 1;
                let function = Function { name: Some(&name), arguments: "" };
                self.call(Call { index: number, id: Some(&id), r#type: Some("function"), function }, out);
                let given = block.take("input").map(|raw| raw.get()).filter(|text| !is_empty_object(text));
                if let Some(arguments) = given {
                    self.arguments(number, arguments, out);
                }
                Kind::Call { number, begun: given.is_some() }
            }
            "thinking" | "redacted_thinking" => {
                left_out.name(format!("/content/{index}"));
                Kind::Hidden
            }
            _ => return Err(unknown_block("/content_block")),
        };
        self.open = Some(Open { index, kind });
        Ok(())
    }

    fn delta(
        &mut self,
        mut of: Members<'_>,
        left_out: &mut LeftOut,
        out: &mut Vec<u8>,
    ) -> Result<(), Refused> {
        let index = of.number("index")?;
        let mut delta = of.need_object("delta")?;
        let kind = delta.need_text("type")?;
        let Some(open) = self.open.as_mut().filter(|open| Some(open.index) == index) else {
            return Err(malformed("/index", "the block that was opened last"));
        };
        match (kind.as_str(), &mut open.kind) {
            ("text_delta", Kind::Text) => {
                let text = delta.need_text("text")?;
                self.text(&text, out);
            }
            ("input_json_delta", Kind::Call { number, begun }) => {
                let piece = delta.need_text("partial_json")?;
                if !piece.is_empty() {
                    *begun = true;
                    let number = *number;
                    self.arguments(number, &piece, out);
                }
            }
            (_, Kind::Hidden) => {}
            ("citations_delta", Kind::Text) => left_out.name(format!("/content/{}/citations", open.index)),
            _ => return Err(unknown_block("/delta")),
        }
        Ok(())
    }

    /// A call without arguments has an empty object in chat, not an empty text.
    fn close(&mut self, out: &mut Vec<u8>) {
        if let Some(Open { kind: Kind::Call { number, begun: false }, .. }) = self.open.take() {
            self.arguments(number, "{}", out);
        }
    }

    fn end_of(&mut self, mut of: Members<'_>, left_out: &mut LeftOut) -> Result<(), Refused> {
        if let Some(usage) = of.object("usage")? {
            self.used.merge(usage);
        }
        let mut delta = of.need_object("delta")?;
        if let Some(word) = delta.text("stop_reason")? {
            let end = End::of_messages(&word, delta.text("stop_sequence")?);
            self.end = Some(end.ok_or_else(|| unknown_end("/delta/stop_reason", "OpenAI chat completions"))?);
        }
        delta.name_left(left_out);
        Ok(())
    }

    fn stop(&mut self, out: &mut Vec<u8>) -> Result<(), Refused> {
        self.close(out);
        let end =
            self.end.take().ok_or_else(|| malformed("/type", "a `stop_reason` before `message_stop`"))?;
        let usage = self.wants_usage.then_some(None);
        self.write(vec![choice(Delta::default(), Some(end.chat()))], usage, out);
        if self.wants_usage {
            self.write(Vec::new(), Some(Some(write_chat_usage(&self.used.tokens()))), out);
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
        self.state = State::Ended;
        Ok(())
    }

    fn text(&self, text: &str, out: &mut Vec<u8>) {
        if !text.is_empty() {
            self.chunk(Delta { content: Some(text), ..Delta::default() }, out);
        }
    }

    fn call(&self, call: Call<'_>, out: &mut Vec<u8>) {
        self.chunk(Delta { tool_calls: Some([call]), ..Delta::default() }, out);
    }

    fn arguments(&self, index: u64, arguments: &str, out: &mut Vec<u8>) {
        self.call(Call { index, id: None, r#type: None, function: Function { name: None, arguments } }, out);
    }

    fn chunk(&self, delta: Delta<'_>, out: &mut Vec<u8>) {
        self.write(vec![choice(delta, None)], self.wants_usage.then_some(None), out);
    }

    fn write(&self, choices: Vec<Choice<'_>>, usage: Option<Option<OutChatUsage>>, out: &mut Vec<u8>) {
        out.extend_from_slice(b"data: ");
        out.extend(json(&Chunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.model,
            choices,
            usage,
        }));
        out.extend_from_slice(b"\n\n");
    }
}

fn choice<'a>(delta: Delta<'a>, finish_reason: Option<&'static str>) -> Choice<'a> {
    Choice { index: 0, delta, logprobs: None, finish_reason }
}

fn is_empty_object(text: &str) -> bool {
    text.bytes().filter(|byte| !byte.is_ascii_whitespace()).eq(*b"{}")
}
