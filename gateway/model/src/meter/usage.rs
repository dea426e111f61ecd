//! The counts a provider gives, as it gives them.

use super::place::Family;
use serde_json::Value;

/// A count above is no count: no model reads or writes as much in one call.
const BELIEVED: u64 = 1_000_000_000;
/// Kinds of server-tool units that are kept.
const UNITS: usize = 16;

/// The unit of tokens written to a cache for an hour, which cost more than those written for minutes. They are among
/// `Tokens::cache_write`.
pub const CACHE_WRITE_1H: &str = "cache_write_1h";

/// What was given so far, each count as last given. Counts in streams are cumulative, and providers that send zeros in
/// one event and numbers in another are frequent: a zero doesn't replace a number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) input: Option<u64>,
    pub(super) output: Option<u64>,
    pub(super) total: Option<u64>,
    pub(super) cache_read: Option<u64>,
    pub(super) cache_write: Option<u64>,
    pub(super) reasoning: Option<u64>,
    /// Gemini's tokens of tool results, beside those of the prompt.
    pub(super) tool_prompt: Option<u64>,
    pub(super) units: Vec<(String, u64)>,
    /// Whether a count made no sense (negative, fractional, a string, absurd).
    pub(super) senseless: bool,
}

impl Usage {
    /// Takes the usage object in; whether it was one.
    pub(super) fn read(&mut self, family: Family, raw: &[u8]) -> bool {
        let Ok(value) = serde_json::from_slice::<Value>(raw) else {
            self.senseless = true;
            return false;
        };
        if !value.is_object() {
            self.senseless |= !value.is_null();
            return false;
        }
        match family {
            Family::Chat | Family::Responses => self.openai(&value),
            Family::Messages => self.anthropic(&value),
            Family::Gemini => self.gemini(&value),
        }
        true
    }

    fn openai(&mut self, usage: &Value) {
        for name in ["prompt_tokens", "input_tokens"] {
            self.senseless |= set(&mut self.input, usage.get(name));
        }
        for name in ["completion_tokens", "output_tokens"] {
            self.senseless |= set(&mut self.output, usage.get(name));
        }
        self.senseless |= set(&mut self.total, usage.get("total_tokens"));
        // Moonshot's and DeepSeek's places first.
        self.senseless |= set(&mut self.cache_read, usage.get("cached_tokens"));
        self.senseless |= set(&mut self.cache_read, usage.get("prompt_cache_hit_tokens"));
        for details in ["prompt_tokens_details", "input_tokens_details"] {
            let Some(details) = usage.get(details) else { continue };
            self.senseless |= set(&mut self.cache_read, details.get("cached_tokens"));
            self.senseless |= set(&mut self.cache_write, details.get("cache_write_tokens"));
            self.audio("audio_input", details.get("audio_tokens"));
        }
        for details in ["completion_tokens_details", "output_tokens_details"] {
            let Some(details) = usage.get(details) else { continue };
            self.senseless |= set(&mut self.reasoning, details.get("reasoning_tokens"));
            self.audio("audio_output", details.get("audio_tokens"));
        }
    }

    fn anthropic(&mut self, usage: &Value) {
        self.senseless |= set(&mut self.input, usage.get("input_tokens"));
        self.senseless |= set(&mut self.output, usage.get("output_tokens"));
        self.senseless |= set(&mut self.cache_read, usage.get("cache_read_input_tokens"));
        self.senseless |= set(&mut self.cache_write, usage.get("cache_creation_input_tokens"));
        if let Some(written) = usage.get("cache_creation") {
            let (mut minutes, mut hour) = (None, None);
            self.senseless |= set(&mut minutes, written.get("ephemeral_5m_input_tokens"));
            self.senseless |= set(&mut hour, written.get("ephemeral_1h_input_tokens"));
            self.unit(CACHE_WRITE_1H, hour.unwrap_or(0));
            let both = minutes.unwrap_or(0).saturating_add(hour.unwrap_or(0));
            self.cache_write = self.cache_write.max((both > 0).then_some(both));
        }
        self.iterations(usage);
        for (name, count) in usage.get("server_tool_use").and_then(Value::as_object).into_iter().flatten() {
            let mut units = None;
            self.senseless |= set(&mut units, Some(count));
            self.unit(name.strip_suffix("_requests").unwrap_or(name), units.unwrap_or(0));
        }
    }

    /// A request that compacted its context was several passes, of which the counts at the top are the last one's.
    fn iterations(&mut self, usage: &Value) {
        let Some(passes) = usage.get("iterations").and_then(Value::as_array) else { return };
        let mut sum = Usage::default();
        for pass in passes {
            for (name, field) in [
                ("input_tokens", &mut sum.input),
                ("output_tokens", &mut sum.output),
                ("cache_read_input_tokens", &mut sum.cache_read),
                ("cache_creation_input_tokens", &mut sum.cache_write),
            ] {
                let mut count = None;
                self.senseless |= set(&mut count, pass.get(name));
                *field = Some(field.unwrap_or(0).saturating_add(count.unwrap_or(0)));
            }
        }
        self.input = self.input.max(sum.input);
        self.output = self.output.max(sum.output);
        self.cache_read = self.cache_read.max(sum.cache_read);
        self.cache_write = self.cache_write.max(sum.cache_write);
    }

    fn gemini(&mut self, usage: &Value) {
        self.senseless |= set(&mut self.input, usage.get("promptTokenCount"));
        self.senseless |= set(&mut self.output, usage.get("candidatesTokenCount"));
        self.senseless |= set(&mut self.total, usage.get("totalTokenCount"));
        self.senseless |= set(&mut self.cache_read, usage.get("cachedContentTokenCount"));
        self.senseless |= set(&mut self.reasoning, usage.get("thoughtsTokenCount"));
        self.senseless |= set(&mut self.tool_prompt, usage.get("toolUsePromptTokenCount"));
        for (list, unit) in
            [("promptTokensDetails", "audio_input"), ("candidatesTokensDetails", "audio_output")]
        {
            for part in usage.get(list).and_then(Value::as_array).into_iter().flatten() {
                if part.get("modality").and_then(Value::as_str) == Some("AUDIO") {
                    self.audio(unit, part.get("tokenCount"));
                }
            }
        }
    }

    fn audio(&mut self, unit: &str, count: Option<&Value>) {
        let mut tokens = None;
        self.senseless |= set(&mut tokens, count);
        self.unit(unit, tokens.unwrap_or(0));
    }

    /// Units of a server tool: the most that was said, since what is said in streams is cumulative.
    pub(super) fn unit(&mut self, name: &str, count: u64) {
        if count == 0 || name.len() > 48 {
            return;
        }
        if let Some((_, known)) = self.units.iter_mut().find(|(known, _)| known == name) {
            *known = count.max(*known);
        } else if self.units.len() < UNITS {
            self.units.push((name.to_owned(), count));
        } else {
            self.senseless = true;
        }
    }
}

/// Sets the count if there is one; whether what is there makes no sense.
fn set(field: &mut Option<u64>, value: Option<&Value>) -> bool {
    let Some(value) = value else { return false };
    if value.is_null() {
        return false;
    }
    // Some serializers write whole numbers as floats.
    let count = value.as_u64().or_else(|| value.as_f64().and_then(whole));
    match count.filter(|count| *count <= BELIEVED) {
        Some(0) => *field = field.or(Some(0)),
        Some(count) => *field = Some(count),
        None => return true,
    }
    false
}

fn whole(float: f64) -> Option<u64> {
    (float.fract() == 0.0 && (0.0..=1e9).contains(&float))
        .then(|| format!("{float:.0}").parse().ok())
        .flatten()
}
