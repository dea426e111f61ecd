//! The APIs and what can be asked of them.

use serde::{Deserialize, Serialize};

/// How a provider is spoken to. Azure OpenAI and Bedrock are places where one of these is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// OpenAI and what is compatible with it.
    OpenAi,
    /// Anthropic.
    Anthropic,
    /// Gemini.
    Gemini,
}

/// What a model request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// OpenAI `chat/completions`.
    Chat,
    /// OpenAI `completions` (legacy).
    Completions,
    /// OpenAI `responses`.
    Responses,
    /// OpenAI `embeddings`.
    Embeddings,
    /// Anthropic `messages`.
    Messages,
    /// Anthropic `messages/count_tokens`, Gemini `:countTokens`: costs nothing.
    CountTokens,
    /// Gemini `:generateContent`.
    Generate,
    /// Gemini `:streamGenerateContent`.
    StreamGenerate,
    /// Gemini `:embedContent` and `:batchEmbedContents`.
    Embed,
    /// A list of models or one of it: costs nothing.
    Models,
}
