//! Counts what an answer used while it runs by: takes the bytes as they are passed on, gives tokens, model and whether
//! the answer came to its end.
//!
//! Architecture invariant: the bytes are passed on before they come here, memory is the same for any length of event
//! or answer, and nothing a provider sends is an error: what can't be read is estimated and marked.

mod coding;
pub(crate) mod events;
mod place;
pub mod properties;
mod scan;
mod tally;
mod usage;

pub use coding::Coding;
pub use usage::CACHE_WRITE_1H;

use crate::api::Operation;
use coding::Decoder;
use events::{Events, Step};
use place::Family;
use scan::Scanner;
use strait_contract::model::Tokens;
use tally::Tally;

/// An event is held back at most this long while it isn't clear whether it is to be hidden.
const HELD: usize = 64 << 10;
const DONE: &[u8] = b"[DONE]";

/// What is known of the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Estimated tokens of the request (`estimate::input`), for answers that say nothing.
    pub input: u64,
}

/// What an answer used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// The tokens; `estimated` if a part isn't the provider's number, or isn't its last one.
    pub tokens: Tokens,
    /// The model as the answer names it.
    pub model: Option<String>,
    /// Whether the answer came to the end that its API defines. One that was cut hasn't, nor one that ended in an error.
    pub complete: bool,
}

/// The count of one answer.
#[derive(Debug)]
pub struct Meter {
    asked: Asked,
    /// Embeddings write nothing.
    embeds: bool,
    decoder: Decoder,
    undecodable: bool,
    /// `None` for what isn't counted.
    reader: Option<Reader>,
}

impl Meter {
    /// A meter for the answer to `operation`, which the provider sends as `coding` says. Whether it is a stream of
    /// events, a JSON array or one object shows by itself: content types of providers are not to be relied upon.
    pub fn new(operation: Operation, asked: Asked, coding: Coding) -> Meter {
        Meter {
            asked,
            embeds: matches!(operation, Operation::Embeddings | Operation::Embed),
            decoder: Decoder::new(coding),
            undecodable: false,
            reader: Family::of(operation).map(Reader::new),
        }
    }

    /// Counts a piece of the body, in order. Only answers of success are to be fed: an error is not an answer.
    pub fn feed(&mut self, bytes: &[u8]) {
        if let Some(reader) = &mut self.reader
            && self.decoder.feed(bytes, |piece| reader.feed(piece)).is_err()
        {
            self.undecodable = true;
        }
    }

    /// Counts a piece of a chat stream whose request was given `stream_options.include_usage` by the gateway, and adds
    /// to `shown` what the client is to get: all but the event that holds nothing but counts. The answer must be
    /// uncoded. A piece of an event is held back only until it shows what it is.
    pub fn feed_hiding(&mut self, bytes: &[u8], shown: &mut Vec<u8>) {
        match &mut self.reader {
            Some(reader) => reader.feed_hiding(bytes, shown),
            None => shown.extend_from_slice(bytes),
        }
    }

    /// What [`Meter::feed_hiding`] still holds back at the end of the stream.
    pub fn shown_at_end(&mut self, shown: &mut Vec<u8>) {
        if let Some(reader) = &mut self.reader {
            shown.append(&mut reader.held);
        }
    }

    /// The count of a whole answer.
    pub fn answer(mut self, bytes: &[u8]) -> Counted {
        self.feed(bytes);
        self.finish()
    }

    /// The count at the answer's end, be it its own or not.
    pub fn finish(mut self) -> Counted {
        let Some(mut reader) = self.reader.take() else {
            return Counted { complete: !self.undecodable, ..Counted::default() };
        };
        self.decoder.end(|piece| reader.feed(piece));
        let mut tally = reader.end(self.embeds);
        if self.undecodable {
            // Coded text is a third or a quarter as long as what it says.
            let tokens = self.decoder.read().max(tally.text.tokens());
            tally.text = crate::estimate::Weight::default();
            let output = if self.embeds { 0 } else { tokens };
            let tokens = Tokens { input: self.asked.input, output, estimated: true, ..Tokens::default() };
            return Counted { tokens, model: tally.model, complete: false };
        }
        tally.take_calls();
        Counted { tokens: self.tokens(&tally), complete: tally.complete, model: tally.model }
    }

    fn tokens(&self, tally: &Tally) -> Tokens {
        let usage = &tally.usage;
        let nothing = usage.input.is_none() && usage.output.is_none() && tally.text.tokens() == 0;
        if tally.failed && nothing {
            return Tokens { estimated: true, ..Tokens::default() };
        }
        let mut tokens = Tokens { estimated: usage.senseless || !tally.settled, ..Tokens::default() };
        tokens.cache_read = usage.cache_read.unwrap_or(0);
        tokens.cache_write = usage.cache_write.unwrap_or(0);
        let cached = tokens.cache_read.saturating_add(tokens.cache_write);
        let given = match tally.family() {
            // Those of the cache are beside the others.
            Family::Messages => usage.input.map(|input| input.saturating_add(cached)),
            Family::Gemini => usage.input.map(|input| input.saturating_add(usage.tool_prompt.unwrap_or(0))),
            Family::Chat | Family::Responses => usage.input,
        };
        tokens.estimated |= given.is_none();
        tokens.input = given.unwrap_or_else(|| self.asked.input.max(cached));
        tokens.cache_read = tokens.cache_read.min(tokens.input);
        tokens.cache_write = tokens.cache_write.min(tokens.input - tokens.cache_read);
        tokens.reasoning = usage.reasoning.unwrap_or(0);
        tokens.units.clone_from(&usage.units);
        tokens.units.sort_unstable();
        if !self.embeds {
            tokens.output = written(tally, &tokens);
            tokens.estimated |= usage.output.is_none() && usage.total.is_none();
        }
        tokens.reasoning = tokens.reasoning.min(tokens.output);
        tokens
    }
}

/// Tokens written: as given, or by the text if the last word on them wasn't said.
fn written(tally: &Tally, tokens: &Tokens) -> u64 {
    let usage = &tally.usage;
    let beside = match tally.family() {
        // Gemini counts thoughts beside the candidates.
        Family::Gemini => tokens.reasoning,
        _ => 0,
    };
    let given = usage.output.map(|output| output.saturating_add(beside));
    // Some compatible providers leave reasoning out of the output, but not out of the total.
    let rest = usage.total.map(|total| total.saturating_sub(tokens.input));
    match given.max(rest) {
        Some(given) if tally.settled && !usage.senseless => given,
        given => given.unwrap_or(0).max(tally.text.tokens()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Nothing but white space came.
    Unknown,
    Events,
    Json,
}

/// Reads an answer's decoded bytes.
#[derive(Debug)]
struct Reader {
    form: Form,
    events: Events,
    scanner: Scanner,
    tally: Tally,
    /// How much of `[DONE]` the event is; `None` if it is something else.
    done: Option<usize>,
    /// Whether the event has data, and whether it has anything but comments.
    data: bool,
    fields: bool,
    /// Bytes of the event that are held back.
    held: Vec<u8>,
    /// Whether the event may be passed on, and whether the last one was hidden.
    visible: bool,
    hidden: bool,
}

impl Reader {
    fn new(family: Family) -> Reader {
        Reader {
            form: Form::Unknown,
            events: Events::new(),
            scanner: Scanner::new(family),
            tally: Tally::new(family),
            done: Some(0),
            data: false,
            fields: false,
            held: Vec::new(),
            visible: false,
            hidden: false,
        }
    }

    fn feed(&mut self, bytes: &[u8]) {
        match self.form(bytes) {
            Form::Unknown => {}
            Form::Json => self.scanner.feed(bytes, &mut self.tally),
            Form::Events => {
                let mut rest = bytes;
                while let Some((step, behind)) = self.events.step(rest) {
                    self.step(step);
                    rest = behind;
                }
            }
        }
    }

    fn feed_hiding(&mut self, bytes: &[u8], shown: &mut Vec<u8>) {
        if self.form(bytes) != Form::Events {
            self.feed(bytes);
            shown.extend_from_slice(bytes);
            return;
        }
        let mut rest = bytes;
        while let Some((step, behind)) = self.events.step(rest) {
            let piece = rest.get(..rest.len() - behind.len()).unwrap_or_default();
            rest = behind;
            if step == Step::Tail && self.hidden {
                continue;
            }
            let ends = step == Step::Ends;
            self.hidden = self.step(step) && !self.visible;
            self.held.extend_from_slice(piece);
            if self.hidden {
                self.held.clear();
                continue;
            }
            let comments = matches!(step, Step::Comment | Step::Tail) && !self.fields;
            self.visible |= self.tally.shows_choice() || self.held.len() > HELD;
            if self.visible || ends || comments {
                shown.append(&mut self.held);
            }
            self.visible &= !ends;
        }
    }

    /// How the answer is built, by its first byte.
    fn form(&mut self, bytes: &[u8]) -> Form {
        if self.form == Form::Unknown
            && let Some(first) = bytes.iter().find(|byte| !byte.is_ascii_whitespace())
        {
            self.form = if matches!(first, b'{' | b'[') { Form::Json } else { Form::Events };
        }
        self.form
    }

    /// Counts a step of the stream; whether an event ended that held nothing but counts.
    fn step(&mut self, step: Step<'_>) -> bool {
        match step {
            Step::Data(piece) => {
                self.fields = true;
                if !self.data {
                    self.data = true;
                    self.done = Some(0);
                }
                if let Some(read) = self.done {
                    let like = DONE.get(read..).is_some_and(|rest| rest.starts_with(piece));
                    self.done = like.then_some(read + piece.len());
                }
                self.scanner.feed(piece, &mut self.tally);
                false
            }
            Step::DataEnds => {
                self.scanner.feed(b"\n", &mut self.tally);
                false
            }
            Step::Other => {
                self.fields = true;
                false
            }
            Step::Ends => {
                self.fields = false;
                self.event_ends()
            }
            Step::Comment | Step::Tail => false,
        }
    }

    fn event_ends(&mut self) -> bool {
        let whole = self.scanner.end(&mut self.tally);
        if !std::mem::take(&mut self.data) {
            return false;
        }
        if self.done == Some(DONE.len()) {
            self.tally.done();
        }
        let only_usage = whole && self.tally.only_usage();
        self.tally.event_ends(whole);
        only_usage
    }

    fn end(mut self, embeds: bool) -> Tally {
        match self.form {
            Form::Json => {
                let whole = self.scanner.end(&mut self.tally);
                self.tally.answer_ends(whole, embeds);
            }
            // An event without its blank line is not an event; but some servers end with the last line, and what it
            // says of the count is better than a guess.
            Form::Events | Form::Unknown => {
                self.event_ends();
            }
        }
        self.tally
    }
}

#[cfg(test)]
mod tests;
