//! Where in an answer the scanner stands, and what of it is worth looking at.

use crate::api::Operation;

/// Answers that are built alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// OpenAI chat, legacy completions and embeddings.
    Chat,
    /// OpenAI responses.
    Responses,
    /// Anthropic messages.
    Messages,
    /// Gemini, streamed or not.
    Gemini,
}

impl Family {
    /// The family of an operation's answers; `None` where nothing is counted.
    pub(super) fn of(operation: Operation) -> Option<Family> {
        match operation {
            Operation::Chat | Operation::Completions | Operation::Embeddings => Some(Family::Chat),
            Operation::Responses => Some(Family::Responses),
            Operation::Messages => Some(Family::Messages),
            Operation::Generate | Operation::StreamGenerate | Operation::Embed => Some(Family::Gemini),
            Operation::CountTokens | Operation::Models => None,
        }
    }
}

/// What a value of an answer is to the count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The answer, or one event of it. An array of such is the same.
    Root,
    /// Nothing beneath is of interest.
    Skip,
    /// `choices` of chat.
    Choices,
    /// Somewhere above written text.
    Body,
    /// Written text, if it is a string.
    Text,
    /// All beneath was written by the model (arguments of a tool call as JSON).
    Tree,
    /// `response` of a Responses event.
    Response,
    /// `message` of `message_start`.
    Message,
    /// `item` of a Responses event.
    Item,
    /// `output` of a whole response, and each item of it.
    Output,
    /// `groundingMetadata` of Gemini.
    Grounding,
    /// `promptFeedback` of Gemini.
    Feedback,
    /// `x_groq`, where Groq's streams have their usage.
    Groq,
    /// One search that was made for the answer.
    Query,
    /// The counts.
    Usage,
    /// The model's name.
    Model,
    /// `type` of the event.
    Kind,
    /// `type` of an item that is done.
    ItemKind,
    /// `status` of a response.
    Status,
    /// Why the model stopped.
    Finish,
    /// An error in the place of an answer.
    Error,
}

impl Place {
    /// Whether the value's own bytes are wanted.
    pub(super) fn captured(self) -> bool {
        use Place::{Error, Finish, ItemKind, Kind, Model, Query, Status, Usage};
        matches!(self, Usage | Model | Kind | ItemKind | Status | Finish | Error | Query)
    }

    /// The place of a member of an object.
    pub(super) fn child(self, family: Family, key: &[u8]) -> Place {
        match (self, key) {
            (Place::Root, key) => root(family, key),
            (Place::Response, b"usage") | (Place::Message, b"usage") | (Place::Groq, b"usage") => {
                Place::Usage
            }
            (Place::Response, b"model") | (Place::Message, b"model") => Place::Model,
            (Place::Response, b"status") => Place::Status,
            (Place::Item, b"type") | (Place::Output, b"type") => Place::ItemKind,
            (Place::Grounding, b"webSearchQueries") => Place::Query,
            (Place::Feedback, b"blockReason") => Place::Finish,
            (Place::Body | Place::Text | Place::Choices | Place::Output, key) => body(key),
            (Place::Tree, _) => Place::Tree,
            _ => Place::Skip,
        }
    }

    /// The place of an element of an array.
    pub(super) fn element(self) -> Place {
        match self {
            Place::Choices => Place::Body,
            other => other,
        }
    }
}

fn root(family: Family, key: &[u8]) -> Place {
    match (family, key) {
        (_, b"error") => Place::Error,
        (Family::Gemini, b"usageMetadata") => Place::Usage,
        (Family::Gemini, b"modelVersion") => Place::Model,
        (Family::Gemini, b"candidates") => Place::Body,
        (Family::Gemini, b"promptFeedback") => Place::Feedback,
        // As Code Assist wraps them.
        (Family::Gemini, b"response") => Place::Root,
        (Family::Gemini, _) => Place::Skip,
        (_, b"usage") => Place::Usage,
        (_, b"model") => Place::Model,
        (Family::Chat, b"choices") => Place::Choices,
        (Family::Chat, b"x_groq") => Place::Groq,
        (Family::Responses | Family::Messages, b"type") => Place::Kind,
        (Family::Responses, b"response") => Place::Response,
        (Family::Responses, b"delta") => Place::Text,
        (Family::Responses, b"item") => Place::Item,
        (Family::Responses, b"output") => Place::Output,
        (Family::Responses, b"status") => Place::Status,
        (Family::Messages, b"message") => Place::Message,
        (Family::Messages, b"delta" | b"content") => Place::Body,
        (Family::Messages, b"stop_reason") => Place::Finish,
        _ => Place::Skip,
    }
}

fn body(key: &[u8]) -> Place {
    match key {
        b"text" | b"content" | b"reasoning_content" | b"reasoning" | b"refusal" | b"arguments"
        | b"partial_json" | b"thinking" | b"code" => Place::Text,
        b"input" | b"args" => Place::Tree,
        b"finish_reason" | b"stop_reason" | b"finishReason" => Place::Finish,
        b"groundingMetadata" => Place::Grounding,
        _ => Place::Body,
    }
}
