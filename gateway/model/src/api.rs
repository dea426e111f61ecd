//! The APIs and what can be asked of them.

pub use strait_contract::provider::Dialect;

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

impl Operation {
    /// As records spell it: the words of the path.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Embeddings => "embeddings",
            Self::Messages => "messages",
            Self::CountTokens => "count_tokens",
            Self::Generate => "generate_content",
            Self::StreamGenerate => "stream_generate_content",
            Self::Embed => "embed_content",
            Self::Models => "models",
        }
    }

    /// Whether the provider charges for it.
    pub fn is_charged(self) -> bool {
        !matches!(self, Self::CountTokens | Self::Models)
    }
}
