//! What a method and path of a model API ask for: an allow-list, everything else is refused by name.

use crate::api::{Dialect, Operation};

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint<'a> {
    /// A call of a model, or a question about models; the model if the path names it.
    Operation(Operation, Option<&'a str>),
    /// One of a group of endpoints besides, which is passed on only if the config allows the group.
    Group(&'static str),
    /// A model call that must be asked for by another method, this one.
    Method(&'static str),
    /// None that is known.
    Unknown,
}

/// Groups of endpoints that a provider's `allow` may name.
pub const GROUPS: [&str; 22] = [
    "assistants",
    "audio",
    "batches",
    "cached_contents",
    "containers",
    "conversations",
    "evals",
    "file_search_stores",
    "files",
    "fine_tuning",
    "images",
    "interactions",
    "moderations",
    "predict",
    "realtime",
    "skills",
    "stored",
    "threads",
    "tuned_models",
    "uploads",
    "vector_stores",
    "videos",
];

/// Versions of the APIs, as the first part of a path or the last of a base URL.
pub const VERSIONS: [&str; 3] = ["v1", "v1beta", "v1alpha"];

/// Reads a request to an API. `path` is canonical, below the provider's base URL, without query.
pub fn read<'a>(dialect: Dialect, method: &str, path: &'a str) -> Endpoint<'a> {
    let path = path.strip_prefix('/').unwrap_or(path);
    match dialect {
        Dialect::OpenAi => openai(method, version(path, &["v1"])),
        Dialect::Anthropic => anthropic(method, version(path, &["v1"])),
        Dialect::Gemini => gemini(method, version(path, &VERSIONS)),
    }
}

/// Without its version: clients put it into the base URL or into the path, operators into the provider's URL.
fn version<'a>(path: &'a str, versions: &[&str]) -> &'a str {
    match path.split_once('/') {
        Some((first, rest)) if versions.contains(&first) => rest,
        _ => path,
    }
}

fn posted<'a>(method: &str, operation: Operation) -> Endpoint<'a> {
    if method == "POST" { Endpoint::Operation(operation, None) } else { Endpoint::Method("POST") }
}

fn models<'a>(method: &str, rest: Option<&'a str>) -> Endpoint<'a> {
    match method {
        "GET" | "HEAD" => Endpoint::Operation(Operation::Models, rest.filter(|name| !name.is_empty())),
        _ => Endpoint::Method("GET"),
    }
}

fn group<'a>(name: &str) -> Endpoint<'a> {
    GROUPS.iter().find(|known| **known == name).map_or(Endpoint::Unknown, |known| Endpoint::Group(known))
}

fn openai<'a>(method: &str, path: &'a str) -> Endpoint<'a> {
    // A stored answer is fetched, listed, changed or deleted by the path that makes one.
    let stored_or = |operation| if method == "POST" { posted(method, operation) } else { group("stored") };
    let (first, rest) = path.split_once('/').map_or((path, None), |(first, rest)| (first, Some(rest)));
    match (first, rest) {
        ("chat", Some("completions")) => match method {
            "POST" | "GET" => stored_or(Operation::Chat),
            _ => Endpoint::Method("POST"),
        },
        ("completions", None) => posted(method, Operation::Completions),
        ("embeddings", None) => posted(method, Operation::Embeddings),
        // Without a body there is no answer to be made: a stored one, or a WebSocket.
        ("responses", None | Some("compact")) => posted(method, Operation::Responses),
        ("responses", Some("input_tokens")) => posted(method, Operation::CountTokens),
        ("responses", Some(_)) => group("stored"),
        ("chat", Some(rest)) if rest.starts_with("completions/") => group("stored"),
        ("models", rest) if method != "DELETE" => models(method, rest),
        ("models", _) => group("fine_tuning"),
        (other, _) => group(other),
    }
}

fn anthropic<'a>(method: &str, path: &'a str) -> Endpoint<'a> {
    let (first, rest) = path.split_once('/').map_or((path, None), |(first, rest)| (first, Some(rest)));
    match (first, rest) {
        ("messages", None) => posted(method, Operation::Messages),
        ("messages", Some("count_tokens")) => posted(method, Operation::CountTokens),
        ("messages", Some(rest)) if rest == "batches" || rest.starts_with("batches/") => group("batches"),
        ("models", rest) => models(method, rest),
        ("files" | "skills", _) => group(first),
        _ => Endpoint::Unknown,
    }
}

fn gemini<'a>(method: &str, path: &'a str) -> Endpoint<'a> {
    let (first, rest) = path.split_once('/').map_or((path, None), |(first, rest)| (first, Some(rest)));
    match first {
        "models" => match rest.and_then(|rest| rest.rsplit_once(':')) {
            None => models(method, rest),
            Some((model, action)) => called(method, model, action),
        },
        "tunedModels" => group("tuned_models"),
        "files" | "batches" | "interactions" => group(first),
        "upload" => group("files"),
        "cachedContents" => group("cached_contents"),
        "fileSearchStores" => group("file_search_stores"),
        _ => Endpoint::Unknown,
    }
}

fn called<'a>(method: &str, model: &'a str, action: &str) -> Endpoint<'a> {
    let operation = match action {
        "generateContent" => Operation::Generate,
        "streamGenerateContent" => Operation::StreamGenerate,
        "countTokens" => Operation::CountTokens,
        "embedContent" | "batchEmbedContents" => Operation::Embed,
        "batchGenerateContent" | "asyncBatchEmbedContent" => return group("batches"),
        "predict" | "predictLongRunning" | "generateAnswer" => return group("predict"),
        _ => return Endpoint::Unknown,
    };
    // A name with a slash isn't a model's.
    match (method, model.contains('/') || model.is_empty()) {
        (_, true) => Endpoint::Unknown,
        ("POST", false) => Endpoint::Operation(operation, Some(model)),
        _ => Endpoint::Method("POST"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_each_api_are_read_a15() {
        use Dialect::{Anthropic, Gemini, OpenAi};
        use Operation::{
            Chat, Completions, CountTokens, Embed, Embeddings, Generate, Messages, Models, Responses,
            StreamGenerate,
        };
        let of = |operation| Endpoint::Operation(operation, None);
        let named = |operation, model| Endpoint::Operation(operation, Some(model));
        for (dialect, method, path, expect) in [
            (OpenAi, "POST", "/v1/chat/completions", of(Chat)),
            (OpenAi, "POST", "/chat/completions", of(Chat)),
            (OpenAi, "POST", "/v1/completions", of(Completions)),
            (OpenAi, "POST", "/v1/responses", of(Responses)),
            (OpenAi, "POST", "/v1/responses/compact", of(Responses)),
            (OpenAi, "POST", "/v1/responses/input_tokens", of(CountTokens)),
            (OpenAi, "POST", "/v1/embeddings", of(Embeddings)),
            (OpenAi, "GET", "/v1/models", of(Models)),
            (OpenAi, "GET", "/v1/models/gpt-5", named(Models, "gpt-5")),
            (OpenAi, "GET", "/v1/responses", Endpoint::Method("POST")),
            (OpenAi, "GET", "/v1/responses/resp_1", Endpoint::Group("stored")),
            (OpenAi, "POST", "/v1/responses/resp_1/cancel", Endpoint::Group("stored")),
            (OpenAi, "GET", "/v1/chat/completions", Endpoint::Group("stored")),
            (OpenAi, "DELETE", "/v1/chat/completions/x", Endpoint::Group("stored")),
            (OpenAi, "DELETE", "/v1/models/ft", Endpoint::Group("fine_tuning")),
            (OpenAi, "POST", "/v1/files", Endpoint::Group("files")),
            (OpenAi, "POST", "/v1/batches/b/cancel", Endpoint::Group("batches")),
            (OpenAi, "GET", "/v1/realtime", Endpoint::Group("realtime")),
            (OpenAi, "GET", "/v1/organization/usage/costs", Endpoint::Unknown),
            (OpenAi, "GET", "/v1", Endpoint::Unknown),
            (OpenAi, "GET", "/", Endpoint::Unknown),
            (OpenAi, "POST", "/v2/chat/completions", Endpoint::Unknown),
            (OpenAi, "POST", "/v1/v1/chat/completions", Endpoint::Unknown),
            (OpenAi, "POST", "/v1/chat/completions/", Endpoint::Group("stored")),
            (Anthropic, "POST", "/v1/messages", of(Messages)),
            (Anthropic, "POST", "/v1/messages/count_tokens", of(CountTokens)),
            (Anthropic, "GET", "/v1/models", of(Models)),
            (Anthropic, "GET", "/v1/messages", Endpoint::Method("POST")),
            (Anthropic, "POST", "/v1/messages/batches", Endpoint::Group("batches")),
            (Anthropic, "GET", "/v1/files", Endpoint::Group("files")),
            (Anthropic, "POST", "/v1/complete", Endpoint::Unknown),
            (Anthropic, "GET", "/v1/organizations/me", Endpoint::Unknown),
            (Anthropic, "POST", "/api/event_logging/batch", Endpoint::Unknown),
            (
                Gemini,
                "POST",
                "/v1beta/models/gemini-2.5-pro:generateContent",
                named(Generate, "gemini-2.5-pro"),
            ),
            (Gemini, "POST", "/v1/models/g:streamGenerateContent", named(StreamGenerate, "g")),
            (Gemini, "POST", "/v1alpha/models/g:countTokens", named(CountTokens, "g")),
            (Gemini, "POST", "/v1beta/models/g:batchEmbedContents", named(Embed, "g")),
            (Gemini, "GET", "/v1beta/models", of(Models)),
            (Gemini, "GET", "/v1beta/models/g", named(Models, "g")),
            (Gemini, "GET", "/v1beta/models/g:generateContent", Endpoint::Method("POST")),
            (Gemini, "POST", "/v1beta/models/a/b:generateContent", Endpoint::Unknown),
            (Gemini, "POST", "/v1beta/models/g:batchGenerateContent", Endpoint::Group("batches")),
            (Gemini, "POST", "/upload/v1beta/files", Endpoint::Group("files")),
            (Gemini, "POST", "/v1beta/cachedContents", Endpoint::Group("cached_contents")),
            (Gemini, "POST", "/v1beta/models/g:somethingNew", Endpoint::Unknown),
        ] {
            assert_eq!(read(dialect, method, path), expect, "{dialect:?} {method} {path}");
        }
    }
}
