//! Requests of Anthropic messages.

use serde::Serialize;
use serde_json::value::RawValue;

use super::members::{Members, elements, malformed};
use super::request::{self, Choice, Effort, Image, Part, Raw, Said, Tool, Who};
use super::{LeftOut, Refused, json};

/// What messages are translated to.
const TO: &str = "OpenAI chat completions";
/// The most stop sequences chat takes.
const MAX_STOP: usize = 4;

pub(super) fn read(raw: &RawValue, left_out: &mut LeftOut) -> Result<Said, Refused> {
    let mut of = Members::read("", raw)?;
    of.need_text("model")?;
    let mut said = Said::default();
    for part in content(&mut of, "system", Holder::System, left_out)? {
        if let Part::Text(text) = part
            && !text.is_empty()
        {
            said.system.push(text);
        }
    }
    for (at, message) in of.list("messages")?.ok_or_else(|| malformed("/messages", "a list"))? {
        let mut message = Members::read(at.as_str(), message)?;
        let (who, holder) = match message.need_text("role")?.as_str() {
            "user" => (Who::User, Holder::User),
            "assistant" => (Who::Assistant, Holder::Assistant),
            "system" => (Who::System, Holder::System),
            _ => return Err(malformed(message.at("role"), "user, assistant or system")),
        };
        let parts = content(&mut message, "content", holder, left_out)?;
        message.none_left(TO)?;
        said.push(who, parts, &at, TO)?;
    }
    let most = of.number("max_tokens")?.ok_or_else(|| malformed("/max_tokens", "a whole number"))?;
    said.max_output = Some(most);
    said.temperature = request::temperature(&mut of, TO)?;
    said.top_p = of.decimal("top_p")?.map(|(raw, _)| Raw(raw.to_owned()));
    said.stop = stop(&mut of)?;
    said.stream = of.flag("stream")?.unwrap_or_default();
    said.usage = said.stream;
    for (at, tool) in of.list("tools")?.unwrap_or_default() {
        said.tools.push(read_tool(Members::read(at, tool)?, left_out)?);
    }
    choice(&mut of, &mut said)?;
    if let Some(mut metadata) = of.object("metadata")? {
        said.user = metadata.text("user_id")?;
        metadata.none_left(TO)?;
    }
    if let Some(mut output) = of.object("output_config")? {
        said.effort = request::effort(&mut output, "effort", TO)?;
        if let Some(mut format) = output.object("format")? {
            format.only("type", &["\"json_schema\""], TO, "the form of an answer is a schema")?;
            let schema = format.take("schema").and_then(|raw| Raw::object(raw.get()));
            said.format = Some(schema.ok_or_else(|| malformed(format.at("schema"), "an object"))?);
            format.none_left(TO)?;
        }
        output.none_left(TO)?;
    }
    thinking(&mut of, left_out)?;
    context_management(&mut of, left_out)?;
    of.hint("cache_control", left_out);
    of.only("service_tier", &["\"auto\""], TO, "tiers differ")?;
    of.only("mcp_servers", &["[]"], TO, "there are no servers of tools")?;
    of.none_left(TO)?;
    Ok(said)
}

fn stop(of: &mut Members<'_>) -> Result<Vec<String>, Refused> {
    let stops = of.list("stop_sequences")?.unwrap_or_default();
    if stops.len() > MAX_STOP {
        let at = of.at("stop_sequences");
        return Err(Refused::Untranslatable { at, to: TO, why: "at most 4 stop sequences" });
    }
    let text = |(at, raw): (String, &RawValue)| {
        serde_json::from_str::<String>(raw.get()).map_err(|_| malformed(at, "a string"))
    };
    stops.into_iter().map(text).collect()
}

/// Adaptive thinking leaves it to the model, which is what models of chat do; a bound on it has no word there.
fn thinking(of: &mut Members<'_>, left_out: &mut LeftOut) -> Result<(), Refused> {
    let Some(mut thinking) = of.object("thinking")? else { return Ok(()) };
    // Whether it's shown: chat never does.
    thinking.hint("display", left_out);
    match thinking.need_text("type")?.as_str() {
        "disabled" | "adaptive" => thinking.none_left(TO),
        _ => Err(Refused::Untranslatable {
            at: thinking.here().to_owned(),
            to: TO,
            why: "thinking can't be given a number of tokens",
        }),
    }
}

/// Edits of the conversation by the provider: clearing of thinking has nothing to clear, since thinking isn't sent.
fn context_management(of: &mut Members<'_>, left_out: &mut LeftOut) -> Result<(), Refused> {
    let Some(mut context) = of.object("context_management")? else { return Ok(()) };
    for (at, edit) in context.list("edits")?.unwrap_or_default() {
        let mut edit = Members::read(at.as_str(), edit)?;
        if !edit.need_text("type")?.starts_with("clear_thinking_") {
            return Err(Refused::Untranslatable {
                at,
                to: TO,
                why: "providers of chat don't edit conversations",
            });
        }
        left_out.name(at);
    }
    context.none_left(TO)
}

fn choice(of: &mut Members<'_>, said: &mut Said) -> Result<(), Refused> {
    let Some(mut choice) = of.object("tool_choice")? else { return Ok(()) };
    said.serial = choice.flag("disable_parallel_tool_use")?.unwrap_or_default();
    said.choice = Some(match choice.need_text("type")?.as_str() {
        "auto" => Choice::Auto,
        "none" => Choice::None,
        "any" => Choice::Any,
        "tool" => Choice::Tool(request::name(choice.need_text("name")?, 64, choice.at("name"))?),
        _ => return Err(malformed(choice.at("type"), "auto, any, tool or none")),
    });
    choice.none_left(TO)
}

fn read_tool(mut tool: Members<'_>, left_out: &mut LeftOut) -> Result<Tool, Refused> {
    tool.only("type", &["\"custom\""], TO, "a tool of the provider's runs at that provider only")?;
    tool.hint("cache_control", left_out);
    tool.hint("eager_input_streaming", left_out);
    let name = request::name(tool.need_text("name")?, 64, tool.at("name"))?;
    let description = tool.text("description")?;
    let schema = tool.take("input_schema").and_then(|raw| Raw::object(raw.get()));
    let schema = schema.ok_or_else(|| malformed(tool.at("input_schema"), "an object"))?;
    let strict = tool.flag("strict")?;
    tool.none_left(TO)?;
    Ok(Tool { name, description, schema, strict })
}

/// What holds content: each may have some kinds of blocks only.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holder {
    System,
    User,
    Assistant,
    Result,
}

fn content(
    of: &mut Members<'_>,
    name: &str,
    holder: Holder,
    left_out: &mut LeftOut,
) -> Result<Vec<Part>, Refused> {
    let Some(raw) = of.take(name) else { return Ok(Vec::new()) };
    if let Ok(text) = serde_json::from_str::<String>(raw.get()) {
        return Ok(vec![Part::Text(text)]);
    }
    let mut parts = Vec::new();
    for (at, block) in elements(&of.at(name), raw)? {
        let mut block = Members::read(at, block)?;
        let kind = block.need_text("type")?;
        parts.push(match (kind.as_str(), holder) {
            ("text", _) => request::text_part(block, TO, left_out)?,
            ("image", Holder::User) => Part::Image(read_image(block, left_out)?),
            ("tool_use", Holder::Assistant) => read_call(block, left_out)?,
            ("tool_result", Holder::User) => read_result(block, left_out)?,
            (kind, holder) => {
                let why = match (kind, holder) {
                    ("thinking" | "redacted_thinking", _) => {
                        "earlier thinking is signed for its own provider"
                    }
                    ("image", Holder::Result) => "a tool's result is text",
                    _ => "of blocks only text, a user's images, tool_use and tool_result have a counterpart",
                };
                return Err(Refused::Untranslatable { at: block.here().to_owned(), to: TO, why });
            }
        });
    }
    Ok(parts)
}

fn read_image(mut block: Members<'_>, left_out: &mut LeftOut) -> Result<Image, Refused> {
    block.hint("cache_control", left_out);
    let mut source = block.need_object("source")?;
    block.none_left(TO)?;
    let image = match source.need_text("type")?.as_str() {
        "base64" => {
            Image::Data { media_type: source.need_text("media_type")?, data: source.need_text("data")? }
        }
        "url" => Image::Url(source.need_text("url")?),
        _ => {
            let at = source.here().to_owned();
            return Err(Refused::Untranslatable { at, to: TO, why: "an image is data or a url" });
        }
    };
    source.none_left(TO)?;
    Ok(image)
}

/// Reads a `tool_use` block, of requests and answers.
pub(super) fn read_call(mut block: Members<'_>, left_out: &mut LeftOut) -> Result<Part, Refused> {
    block.hint("cache_control", left_out);
    block.only(
        "caller",
        &[r#"{"type":"direct"}"#, r#"{"type": "direct"}"#],
        TO,
        "tools are called by the model",
    )?;
    let id = request::name(block.need_text("id")?, 128, block.at("id"))?;
    let name = request::name(block.need_text("name")?, 64, block.at("name"))?;
    let arguments = block.take("input").and_then(|raw| Raw::object(raw.get()));
    let arguments = arguments.ok_or_else(|| malformed(block.at("input"), "an object"))?;
    block.none_left(TO)?;
    Ok(Part::Call { id, name, arguments })
}

fn read_result(mut block: Members<'_>, left_out: &mut LeftOut) -> Result<Part, Refused> {
    block.hint("cache_control", left_out);
    let of = request::name(block.need_text("tool_use_id")?, 128, block.at("tool_use_id"))?;
    let mut parts = content(&mut block, "content", Holder::Result, left_out)?;
    parts.retain(|part| !matches!(part, Part::Text(text) if text.is_empty()));
    let failed = block.flag("is_error")?.unwrap_or_default();
    block.none_left(TO)?;
    Ok(Part::Result { of, parts, failed })
}

#[derive(Serialize)]
struct Out<'a> {
    model: &'a str,
    max_tokens: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    system: Vec<Block<'a>>,
    messages: Vec<Message<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<&'a Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<&'a Raw>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    stop_sequences: &'a [String],
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stream: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<OutTool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<OutChoice<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Metadata<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_config: Option<OutputConfig<'a>>,
}

#[derive(Serialize)]
struct Message<'a> {
    role: Who,
    content: Vec<Block<'a>>,
}

#[derive(Serialize)]
struct Metadata<'a> {
    user_id: &'a str,
}

#[derive(Serialize)]
struct OutputConfig<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    effort: Option<Effort>,
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<Format<'a>>,
}

#[derive(Serialize)]
struct Format<'a> {
    r#type: &'static str,
    schema: &'a Raw,
}

#[derive(Serialize)]
struct OutTool<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    input_schema: &'a Raw,
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
}

#[derive(Serialize)]
struct OutChoice<'a> {
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    disable_parallel_tool_use: bool,
}

/// A block of content, in requests and answers.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Block<'a> {
    Text {
        text: &'a str,
    },
    Image {
        source: Source<'a>,
    },
    ToolUse {
        id: &'a str,
        name: &'a str,
        input: &'a Raw,
    },
    ToolResult {
        tool_use_id: &'a str,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        content: Vec<Block<'a>>,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
    },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Source<'a> {
    Base64 { media_type: &'a str, data: &'a str },
    Url { url: &'a str },
}

pub(super) fn write(said: &Said, model: &str, max_output: u64) -> Vec<u8> {
    let tools = said.tools.iter().map(|tool| OutTool {
        name: &tool.name,
        description: tool.description.as_deref(),
        input_schema: &tool.schema,
        strict: tool.strict,
    });
    let turns = said.turns.iter().map(|turn| Message { role: turn.who, content: blocks(&turn.parts) });
    json(&Out {
        model,
        max_tokens: said.max_output.unwrap_or(max_output),
        system: said.system.iter().map(|text| Block::Text { text }).collect(),
        messages: turns.collect(),
        temperature: said.temperature.as_ref(),
        top_p: said.top_p.as_ref(),
        stop_sequences: &said.stop,
        stream: said.stream,
        tools: tools.collect(),
        tool_choice: write_choice(said),
        metadata: said.user.as_deref().map(|user_id| Metadata { user_id }),
        output_config: (said.effort.is_some() || said.format.is_some()).then(|| OutputConfig {
            effort: said.effort,
            format: said.format.as_ref().map(|schema| Format { r#type: "json_schema", schema }),
        }),
    })
}

fn write_choice(said: &Said) -> Option<OutChoice<'_>> {
    let (r#type, name) = match &said.choice {
        // "One at a time" hangs on a choice there; without tools it says nothing.
        None if said.serial && !said.tools.is_empty() => ("auto", None),
        None => return None,
        Some(Choice::Auto) => ("auto", None),
        Some(Choice::None) => ("none", None),
        Some(Choice::Any) => ("any", None),
        Some(Choice::Tool(name)) => ("tool", Some(name.as_str())),
    };
    Some(OutChoice { r#type, name, disable_parallel_tool_use: said.serial && r#type != "none" })
}

/// Parts as blocks.
pub(super) fn blocks(parts: &[Part]) -> Vec<Block<'_>> {
    parts.iter().map(block).collect()
}

fn block(part: &Part) -> Block<'_> {
    match part {
        Part::Text(text) => Block::Text { text },
        Part::Image(Image::Url(url)) => Block::Image { source: Source::Url { url } },
        Part::Image(Image::Data { media_type, data }) => {
            Block::Image { source: Source::Base64 { media_type, data } }
        }
        Part::Call { id, name, arguments } => Block::ToolUse { id, name, input: arguments },
        Part::Result { of, parts, failed } => {
            Block::ToolResult { tool_use_id: of, content: blocks(parts), is_error: *failed }
        }
    }
}
