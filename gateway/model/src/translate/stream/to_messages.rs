//! A stream of chat as one of messages.

use serde::Serialize;
use strait_contract::model::Tokens;

use crate::translate::answer::{End, OutMessagesUsage, chat_usage, unknown_end, write_messages_usage};
use crate::translate::members::{Members, malformed, whole};
use crate::translate::{LeftOut, Refused, error, json};

const MESSAGES: &str = "Anthropic messages";

/// Where the stream is.
#[derive(Debug, Default)]
pub(super) struct ToMessages {
    begun: bool,
    open: Option<Open>,
    /// Index of the next block.
    next: u64,
    /// Index of the next call in chat.
    calls: u64,
    used: Tokens,
    refused: bool,
    end: Option<End>,
    ended: bool,
}

/// The block that's open, always the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Text,
    /// A call, by its index in chat.
    Call(u64),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event<'a> {
    MessageStart { message: Message<'a> },
    ContentBlockStart { index: u64, content_block: Block<'a> },
    ContentBlockDelta { index: u64, delta: Delta<'a> },
    ContentBlockStop { index: u64 },
    MessageDelta { delta: EndDelta<'a>, usage: OutMessagesUsage },
    MessageStop,
}

#[derive(Serialize)]
struct Message<'a> {
    id: &'a str,
    r#type: &'static str,
    role: &'static str,
    model: &'a str,
    content: [(); 0],
    stop_reason: Option<()>,
    stop_sequence: Option<()>,
    usage: OutMessagesUsage,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block<'a> {
    Text { text: &'static str },
    ToolUse { id: &'a str, name: &'a str, input: Nothing },
}

#[derive(Serialize)]
struct Nothing {}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Delta<'a> {
    TextDelta { text: &'a str },
    InputJsonDelta { partial_json: &'a str },
}

#[derive(Serialize)]
struct EndDelta<'a> {
    stop_reason: &'static str,
    stop_sequence: Option<&'a str>,
}

impl ToMessages {
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    pub(super) fn event(
        &mut self,
        data: &[u8],
        left_out: &mut LeftOut,
        out: &mut Vec<u8>,
    ) -> Result<(), Refused> {
        if data.trim_ascii() == b"[DONE]" {
            return if self.end(out) { Ok(()) } else { Err(Refused::Cut) };
        }
        let mut of = Members::read("", whole(data)?)?;
        if let Some(error) = of.object("error")? {
            let (kind, message) = error::read_inner(error).ok_or_else(|| malformed("/error", "an error"))?;
            return Err(Refused::Upstream { kind, message });
        }
        let choices = of.list("choices")?.unwrap_or_default();
        // A first chunk without a choice (Azure's, of its filters) has no id or model yet.
        if !self.begun && !choices.is_empty() {
            self.start(&mut of, out)?;
        }
        if let Some(usage) = of.object("usage")? {
            // Some give it in every chunk: the last is the sum.
            self.used = chat_usage(usage);
        }
        for (at, choice) in choices {
            let mut choice = Members::read(at, choice)?;
            if choice.number("index")?.is_some_and(|index| index != 0) {
                let (at, why) = (choice.at("index"), "an answer has one choice");
                return Err(Refused::Untranslatable { at, to: MESSAGES, why });
            }
            self.choice(choice, left_out, out)?;
        }
        Ok(())
    }

    /// The end, if the answer is whole: the model gave a reason to end. Not all servers say `[DONE]` after it.
    pub(super) fn end(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(end) = self.end.take() else { return false };
        let end = if self.refused { End::Refusal } else { end };
        self.close(out);
        let delta = EndDelta { stop_reason: end.messages(), stop_sequence: end.sequence() };
        write("message_delta", &Event::MessageDelta { delta, usage: write_messages_usage(&self.used) }, out);
        write("message_stop", &Event::MessageStop, out);
        self.ended = true;
        true
    }

    fn start(&mut self, of: &mut Members<'_>, out: &mut Vec<u8>) -> Result<(), Refused> {
        let (id, model) = (of.need_text("id")?, of.need_text("model")?);
        let message = Message {
            id: &id,
            r#type: "message",
            role: "assistant",
            model: &model,
            content: [],
            stop_reason: None,
            stop_sequence: None,
            // Chat says what was used at the end only.
            usage: write_messages_usage(&Tokens::default()),
        };
        write("message_start", &Event::MessageStart { message }, out);
        self.begun = true;
        Ok(())
    }

    fn choice(
        &mut self,
        mut choice: Members<'_>,
        left_out: &mut LeftOut,
        out: &mut Vec<u8>,
    ) -> Result<(), Refused> {
        if let Some(mut delta) = choice.object("delta")? {
            for name in ["content", "refusal"] {
                let text = delta.text(name)?.unwrap_or_default();
                if !text.is_empty() {
                    self.refused |= name == "refusal";
                    self.text(&text, out);
                }
            }
            for (at, call) in delta.list("tool_calls")?.unwrap_or_default() {
                self.call(Members::read(at, call)?, out)?;
            }
            for name in ["function_call", "audio"] {
                delta.only(name, &[], MESSAGES, "answers are text and tool calls")?;
            }
            delta.take("role");
            delta.name_left(left_out);
        }
        if let Some(word) = choice.text("finish_reason")? {
            let end =
                End::of_chat(&word).ok_or_else(|| unknown_end(&choice.at("finish_reason"), MESSAGES))?;
            self.end = Some(end);
        }
        choice.name_left(left_out);
        Ok(())
    }

    fn text(&mut self, text: &str, out: &mut Vec<u8>) {
        if self.open != Some(Open::Text) {
            self.open_block(Open::Text, Block::Text { text: "" }, out);
        }
        self.delta(Delta::TextDelta { text }, out);
    }

    fn call(&mut self, mut call: Members<'_>, out: &mut Vec<u8>) -> Result<(), Refused> {
        let index = call.number("index")?.ok_or_else(|| malformed(call.at("index"), "a whole number"))?;
        let id = call.text("id")?.filter(|id| !id.is_empty());
        let mut function = call.object("function")?;
        let part = |function: &mut Option<Members<'_>>, name| match function {
            Some(function) => function.text(name),
            None => Ok(None),
        };
        let name = part(&mut function, "name")?.filter(|name| !name.is_empty());
        let arguments = part(&mut function, "arguments")?.unwrap_or_default();
        if index == self.calls {
            call.only("type", &["\"function\""], MESSAGES, "only functions are called there")?;
            let id = id.ok_or_else(|| malformed(call.at("id"), "an id with a call's first piece"))?;
            let name = name.ok_or_else(|| {
                malformed(format!("{}/name", call.at("function")), "a name with a call's first piece")
            })?;
            self.calls += 1;
            self.open_block(
                Open::Call(index),
                Block::ToolUse { id: &id, name: &name, input: Nothing {} },
                out,
            );
        } else if self.open != Some(Open::Call(index)) {
            let (at, why) = (call.at("index"), "calls are written one after another");
            return Err(Refused::Untranslatable { at, to: MESSAGES, why });
        }
        if !arguments.is_empty() {
            self.delta(Delta::InputJsonDelta { partial_json: &arguments }, out);
        }
        Ok(())
    }

    fn open_block(&mut self, open: Open, content_block: Block<'_>, out: &mut Vec<u8>) {
        self.close(out);
        write("content_block_start", &Event::ContentBlockStart { index: self.next, content_block }, out);
        self.open = Some(open);
        self.next += 1;
    }

    fn delta(&self, delta: Delta<'_>, out: &mut Vec<u8>) {
        let index = self.next.saturating_sub(1);
        write("content_block_delta", &Event::ContentBlockDelta { index, delta }, out);
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        if self.open.take().is_some() {
            let index = self.next.saturating_sub(1);
            write("content_block_stop", &Event::ContentBlockStop { index }, out);
        }
    }
}

fn write(name: &str, event: &Event<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\ndata: ");
    out.extend(json(event));
    out.extend_from_slice(b"\n\n");
}
