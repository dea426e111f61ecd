//! Requests of OpenAI chat completions.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Serialize;
use serde_json::value::RawValue;

use super::members::{Members, elements, malformed};
use super::request::{self, Choice, Effort, FAILED, Image, Part, Raw, Said, Tool, Turn, Who};
use super::{LeftOut, Refused, json};

/// What chat is translated to.
const TO: &str = "Anthropic messages";

/// What a form of answers is called, which has no name in messages.
const FORMAT_NAME: &str = "answer";

/// Members that are fine with the value that holds in messages anyway.
const ONLY: &[(&str, &[&str], &str)] = &[
    ("n", &["1"], "an answer has one choice"),
    ("frequency_penalty", &["0", "0.0"], "there are no penalties"),
    ("presence_penalty", &["0", "0.0"], "there are no penalties"),
    ("logprobs", &["false"], "there are no log probabilities"),
    ("top_logprobs", &["0"], "there are no log probabilities"),
    ("logit_bias", &["{}"], "there is no bias of tokens"),
    ("modalities", &[r#"["text"]"#], "answers are text"),
    ("store", &["false"], "answers are not stored"),
    ("service_tier", &["\"auto\"", "\"default\""], "tiers differ"),
    ("verbosity", &["\"medium\""], "there is no verbosity"),
    ("metadata", &["{}"], "there are no tags"),
    ("function_call", &[], "write `tool_choice`"),
    ("functions", &[], "write `tools`"),
];

/// Names of calls by id, for the `name` that some clients repeat in a tool's result.
type Called = HashMap<String, String>;

pub(super) fn read(raw: &RawValue, left_out: &mut LeftOut) -> Result<Said, Refused> {
    let mut of = Members::read("", raw)?;
    of.need_text("model")?;
    let mut said = Said::default();
    let messages = of.list("messages")?.ok_or_else(|| malformed("/messages", "a list"))?;
    let mut called = Called::new();
    for (at, message) in messages {
        read_message(&mut said, Members::read(at, message)?, &mut called, left_out)?;
    }
    said.max_output = max_output(&mut of)?;
    said.temperature = request::temperature(&mut of, TO)?;
    said.top_p = of.decimal("top_p")?.map(|(raw, _)| Raw(raw.to_owned()));
    said.stop = stop(&mut of)?;
    said.stream = of.flag("stream")?.unwrap_or_default();
    if let Some(mut options) = of.object("stream_options")? {
        said.usage = options.flag("include_usage")?.unwrap_or_default() && said.stream;
        options.hint("include_obfuscation", left_out);
        options.none_left(TO)?;
    }
    for (at, tool) in of.list("tools")?.unwrap_or_default() {
        said.tools.push(read_tool(Members::read(at, tool)?, left_out)?);
    }
    said.choice = choice(&mut of)?;
    said.serial = of.flag("parallel_tool_calls")? == Some(false);
    said.user = of.text("user")?;
    said.effort = request::effort(&mut of, "reasoning_effort", TO)?;
    said.format = format(&mut of, left_out)?;
    for hint in ["prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier"] {
        of.hint(hint, left_out);
    }
    for (name, same, why) in ONLY {
        of.only(name, same, TO, why)?;
    }
    of.none_left(TO)?;
    Ok(said)
}

fn max_output(of: &mut Members<'_>) -> Result<Option<u64>, Refused> {
    let (new, old) = (of.number("max_completion_tokens")?, of.number("max_tokens")?);
    match (new, old) {
        (Some(new), Some(old)) if new != old => {
            Err(malformed("/max_tokens", "the same as `max_completion_tokens`, or left out"))
        }
        _ => Ok(new.or(old)),
    }
}

fn stop(of: &mut Members<'_>) -> Result<Vec<String>, Refused> {
    let Some(raw) = of.take("stop") else { return Ok(Vec::new()) };
    let text = |raw: &RawValue| serde_json::from_str::<String>(raw.get());
    if let Ok(one) = text(raw) {
        return Ok(vec![one]);
    }
    let texts = elements("/stop", raw)?;
    texts.into_iter().map(|(at, raw)| text(raw).map_err(|_| malformed(at, "a string"))).collect()
}

/// The form of an answer: text, or JSON of a schema, whose name and description messages have no place for.
fn format(of: &mut Members<'_>, left_out: &mut LeftOut) -> Result<Option<Raw>, Refused> {
    let Some(mut format) = of.object("response_format")? else { return Ok(None) };
    let read = match format.need_text("type")?.as_str() {
        "text" => None,
        "json_schema" => {
            let mut inner = format.need_object("json_schema")?;
            let schema = inner.take("schema").and_then(|raw| Raw::object(raw.get()));
            let schema = schema.ok_or_else(|| malformed(inner.at("schema"), "an object"))?;
            if inner.need_text("name")? != FORMAT_NAME {
                left_out.name(inner.at("name"));
            }
            inner.hint("description", left_out);
            // Messages always keep to it.
            inner.flag("strict")?;
            inner.none_left(TO)?;
            Some(schema)
        }
        _ => {
            let (at, why) = (format.at("type"), "JSON needs a schema there");
            return Err(Refused::Untranslatable { at, to: TO, why });
        }
    };
    format.none_left(TO)?;
    Ok(read)
}

fn choice(of: &mut Members<'_>) -> Result<Option<Choice>, Refused> {
    let Some(raw) = of.take("tool_choice") else { return Ok(None) };
    match raw.get() {
        "\"auto\"" => return Ok(Some(Choice::Auto)),
        "\"none\"" => return Ok(Some(Choice::None)),
        "\"required\"" => return Ok(Some(Choice::Any)),
        _ => {}
    }
    let mut choice = Members::read("/tool_choice", raw)?;
    choice.only("type", &["\"function\""], TO, "only a function can be chosen")?;
    let mut function = choice.need_object("function")?;
    let name = request::name(function.need_text("name")?, 64, function.at("name"))?;
    function.none_left(TO)?;
    choice.none_left(TO)?;
    Ok(Some(Choice::Tool(name)))
}

fn read_tool(mut tool: Members<'_>, left_out: &mut LeftOut) -> Result<Tool, Refused> {
    tool.only("type", &["\"function\""], TO, "only functions are tools there")?;
    tool.hint("cache_control", left_out);
    let mut function = tool.need_object("function")?;
    tool.none_left(TO)?;
    let name = request::name(function.need_text("name")?, 64, function.at("name"))?;
    let description = function.text("description")?;
    let schema = function.take("parameters").map_or(r#"{"type":"object","properties":{}}"#, RawValue::get);
    let schema = Raw::object(schema).ok_or_else(|| malformed(function.at("parameters"), "an object"))?;
    let strict = function.flag("strict")?;
    function.none_left(TO)?;
    Ok(Tool { name, description, schema, strict })
}

fn read_message(
    said: &mut Said,
    mut of: Members<'_>,
    called: &mut Called,
    left_out: &mut LeftOut,
) -> Result<(), Refused> {
    let at = of.here().to_owned();
    let role = of.need_text("role")?;
    of.hint("cache_control", left_out);
    match role.as_str() {
        "system" | "developer" => {
            let parts = content(&mut of, false, left_out)?;
            of.none_left(TO)?;
            said.push(Who::System, parts, &at, TO)
        }
        "user" => {
            let parts = content(&mut of, true, left_out)?;
            of.none_left(TO)?;
            said.push(Who::User, parts, &at, TO)
        }
        "assistant" => {
            let mut parts = content(&mut of, false, left_out)?;
            for (at, call) in of.list("tool_calls")?.unwrap_or_default() {
                parts.push(read_call(Members::read(at, call)?, called)?);
            }
            of.only("annotations", &["[]"], TO, "texts of requests are not annotated")?;
            of.none_left(TO)?;
            said.push(Who::Assistant, parts, &at, TO)
        }
        "tool" => {
            let id = request::name(of.need_text("tool_call_id")?, 128, of.at("tool_call_id"))?;
            let mut parts = content(&mut of, false, left_out)?;
            if let Some(name) = of.text("name")?
                && called.get(&id) != Some(&name)
            {
                let why = "a result is told by its id, and that call had another name";
                return Err(Refused::Untranslatable { at: of.at("name"), to: TO, why });
            }
            of.none_left(TO)?;
            let failed = matches!(parts.first(), Some(Part::Text(text)) if text == FAILED);
            if failed {
                parts.remove(0);
            }
            parts.retain(|part| !matches!(part, Part::Text(text) if text.is_empty()));
            said.push(Who::User, vec![Part::Result { of: id, parts, failed }], &at, TO)
        }
        _ => Err(malformed(of.at("role"), "system, developer, user, assistant or tool")),
    }
}

/// A message's content: a string or parts; `images`: whether some may be images.
fn content(of: &mut Members<'_>, images: bool, left_out: &mut LeftOut) -> Result<Vec<Part>, Refused> {
    let Some(raw) = of.take("content") else { return Ok(Vec::new()) };
    if let Ok(text) = serde_json::from_str::<String>(raw.get()) {
        return Ok(vec![Part::Text(text)]);
    }
    let mut parts = Vec::new();
    for (at, part) in elements(&of.at("content"), raw)? {
        let mut part = Members::read(at, part)?;
        match part.need_text("type")?.as_str() {
            "text" => parts.push(request::text_part(part, TO, left_out)?),
            "image_url" if images => parts.push(Part::Image(read_image(part, left_out)?)),
            _ => {
                let why = "of contents only text (and a user's images) has a counterpart";
                return Err(Refused::Untranslatable { at: part.here().to_owned(), to: TO, why });
            }
        }
    }
    Ok(parts)
}

fn read_image(mut part: Members<'_>, left_out: &mut LeftOut) -> Result<Image, Refused> {
    part.hint("cache_control", left_out);
    let mut image = part.need_object("image_url")?;
    part.none_left(TO)?;
    let url = image.need_text("url")?;
    image.hint("detail", left_out);
    let at = image.at("url");
    image.none_left(TO)?;
    if let Some(data) = url.strip_prefix("data:") {
        let Some((media_type, data)) = data.split_once(";base64,") else {
            return Err(Refused::Untranslatable {
                at,
                to: TO,
                why: "an image's data are base64 of a media type",
            });
        };
        return Ok(Image::Data { media_type: media_type.to_owned(), data: data.to_owned() });
    }
    if url.starts_with("https://") || url.starts_with("http://") {
        return Ok(Image::Url(url));
    }
    Err(malformed(at, "an `https:` or `data:` url"))
}

fn read_call(mut call: Members<'_>, called: &mut Called) -> Result<Part, Refused> {
    call.only("type", &["\"function\""], TO, "only functions are called there")?;
    call.take("index");
    let id = request::name(call.need_text("id")?, 128, call.at("id"))?;
    let mut function = call.need_object("function")?;
    call.none_left(TO)?;
    let name = request::name(function.need_text("name")?, 64, function.at("name"))?;
    let arguments = Raw::object(&function.need_text("arguments")?).ok_or_else(|| {
        Refused::Untranslatable { at: function.at("arguments"), to: TO, why: "arguments are a JSON object" }
    })?;
    function.none_left(TO)?;
    called.insert(id.clone(), name.clone());
    Ok(Part::Call { id, name, arguments })
}

#[derive(Serialize)]
struct Out<'a> {
    model: &'a str,
    messages: Vec<Message<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<&'a Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<&'a Raw>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    stop: &'a [String],
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<FunctionTool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<Chosen<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parallel_tool_calls: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<Effort>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_format: Option<Format<'a>>,
}

#[derive(Serialize)]
struct Format<'a> {
    r#type: &'static str,
    json_schema: Schema<'a>,
}

#[derive(Serialize)]
struct Schema<'a> {
    name: &'static str,
    schema: &'a Raw,
    strict: bool,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
struct FunctionTool<'a> {
    r#type: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    parameters: &'a Raw,
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Chosen<'a> {
    Word(&'static str),
    Function { r#type: &'static str, function: Named<'a> },
}

#[derive(Serialize)]
struct Named<'a> {
    name: &'a str,
}

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
enum Message<'a> {
    System {
        content: Content<'a>,
    },
    User {
        content: Content<'a>,
    },
    Assistant {
        content: Option<Content<'a>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<Call<'a>>,
    },
    Tool {
        tool_call_id: &'a str,
        content: Content<'a>,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Text(&'a str),
    Parts(Vec<OutPart<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum OutPart<'a> {
    Text { text: &'a str },
    ImageUrl { image_url: Url<'a> },
}

#[derive(Serialize)]
struct Url<'a> {
    url: Cow<'a, str>,
}

/// A tool call as chat has it, in requests and answers.
#[derive(Serialize)]
pub(super) struct Call<'a> {
    id: &'a str,
    r#type: &'static str,
    function: CallOf<'a>,
}

#[derive(Serialize)]
struct CallOf<'a> {
    name: &'a str,
    arguments: &'a str,
}

pub(super) fn write(said: &Said, model: &str) -> Vec<u8> {
    let mut messages = Vec::new();
    if !said.system.is_empty() {
        let parts = said.system.iter().map(|text| OutPart::Text { text }).collect();
        messages.push(Message::System { content: one_or_many(parts) });
    }
    for turn in &said.turns {
        write_turn(turn, &mut messages);
    }
    let tools = said.tools.iter().map(|tool| FunctionTool {
        r#type: "function",
        function: Function {
            name: &tool.name,
            description: tool.description.as_deref(),
            parameters: &tool.schema,
            strict: tool.strict,
        },
    });
    json(&Out {
        model,
        messages,
        max_completion_tokens: said.max_output,
        temperature: said.temperature.as_ref(),
        top_p: said.top_p.as_ref(),
        stop: &said.stop,
        stream: said.stream,
        // Always: messages have usage in every stream, and the meter needs it.
        stream_options: said.stream.then_some(StreamOptions { include_usage: true }),
        tools: tools.collect(),
        tool_choice: said.choice.as_ref().map(|choice| match choice {
            Choice::Auto => Chosen::Word("auto"),
            Choice::None => Chosen::Word("none"),
            Choice::Any => Chosen::Word("required"),
            Choice::Tool(name) => Chosen::Function { r#type: "function", function: Named { name } },
        }),
        parallel_tool_calls: said.serial.then_some(false),
        user: said.user.as_deref(),
        reasoning_effort: said.effort,
        response_format: said.format.as_ref().map(|schema| Format {
            r#type: "json_schema",
            json_schema: Schema { name: FORMAT_NAME, schema, strict: true },
        }),
    })
}

fn write_turn<'a>(turn: &'a Turn, messages: &mut Vec<Message<'a>>) {
    let calls = calls(&turn.parts);
    for part in &turn.parts {
        let Part::Result { of, parts, failed } = part else { continue };
        let mark = failed.then_some(OutPart::Text { text: FAILED });
        let parts: Vec<_> = mark.into_iter().chain(parts.iter().filter_map(content_part)).collect();
        messages.push(Message::Tool { tool_call_id: of, content: one_or_many(parts) });
    }
    let parts: Vec<_> = turn.parts.iter().filter_map(content_part).collect();
    match turn.who {
        Who::User if parts.is_empty() => {}
        Who::System => messages.push(Message::System { content: one_or_many(parts) }),
        Who::User => messages.push(Message::User { content: one_or_many(parts) }),
        Who::Assistant => {
            let content = (!parts.is_empty()).then(|| one_or_many(parts));
            messages.push(Message::Assistant { content, tool_calls: calls });
        }
    }
}

/// The tool calls among parts.
pub(super) fn calls<'a>(parts: &'a [Part]) -> Vec<Call<'a>> {
    let call = |part: &'a Part| match part {
        Part::Call { id, name, arguments } => {
            let function = CallOf { name, arguments: arguments.0.get() };
            Some(Call { id, r#type: "function", function })
        }
        _ => None,
    };
    parts.iter().filter_map(call).collect()
}

fn content_part(part: &Part) -> Option<OutPart<'_>> {
    match part {
        Part::Text(text) => Some(OutPart::Text { text }),
        Part::Image(Image::Url(url)) => {
            Some(OutPart::ImageUrl { image_url: Url { url: Cow::Borrowed(url) } })
        }
        Part::Image(Image::Data { media_type, data }) => Some(OutPart::ImageUrl {
            image_url: Url { url: format!("data:{media_type};base64,{data}").into() },
        }),
        Part::Call { .. } | Part::Result { .. } => None,
    }
}

/// One text alone is a string, which every compatible server takes.
fn one_or_many(mut parts: Vec<OutPart<'_>>) -> Content<'_> {
    match (parts.pop(), parts.is_empty()) {
        (None, _) => Content::Text(""),
        (Some(OutPart::Text { text }), true) => Content::Text(text),
        (Some(last), _) => {
            parts.push(last);
            Content::Parts(parts)
        }
    }
}
