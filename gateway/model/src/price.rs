//! What calls cost: a table of list prices that ships with Strait, overridden and added to by the operator.
//!
//! Prices change and contracts differ: whoever relies on money budgets has to check `prices.toml` against the
//! provider's page and put what differs into `[prices]`. A model that is in neither has no price, never a price of zero.

use crate::route::ModelPattern;
use std::collections::BTreeMap;

use serde::Deserialize;
use strait_contract::model::{Tokens, Usd};

use crate::api::Dialect;
use crate::meter::CACHE_WRITE_1H;

/// The table that ships, as TOML.
pub const SHIPPED: &str = include_str!("../prices.toml");

/// A million tokens, the quantity of list prices.
const MILLION: u128 = 1_000_000;

/// A price as an operator writes it: US dollars for a million tokens; of units, for one.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Tokens read that aren't from a cache.
    pub input: f64,
    /// Tokens written, reasoning among them. Absent where nothing is written (embeddings).
    #[serde(default)]
    pub output: f64,
    /// Tokens read from a cache; as `input` if absent.
    pub cache_read: Option<f64>,
    /// Tokens written to a cache; as `input` if absent.
    pub cache_write: Option<f64>,
    /// Those that are to stay for an hour; as `cache_write` if absent.
    pub cache_write_1h: Option<f64>,
    /// Other prices for the whole call if more than so many tokens are read.
    pub long: Option<Long>,
    /// One unit of a server tool or of tokens that cost more than others (`audio_input`: what one costs beside its
    /// price as a token). A call with a unit that has no price here has no price.
    #[serde(default)]
    pub units: BTreeMap<String, f64>,
    /// Units of which any number in a call costs as one.
    #[serde(default)]
    pub once: Vec<String>,
    /// The call itself.
    #[serde(default)]
    pub call: f64,
    /// Most tokens that the model writes in an answer: what is reserved for a call that sets no limit.
    pub max_output: Option<u64>,
}

/// Prices of calls with a long input.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Long {
    /// Tokens read above which these prices hold.
    pub over: u64,
    /// As in [`Row`].
    pub input: f64,
    /// As in [`Row`].
    pub output: f64,
    /// As in [`Row`].
    pub cache_read: Option<f64>,
    /// As in [`Row`].
    pub cache_write: Option<f64>,
    /// As in [`Row`].
    pub cache_write_1h: Option<f64>,
}

/// Rows by `PROVIDER/MODEL`: the provider by its name in the configuration or by its API, the model with `*` for any
/// number of characters. `[prices]` of the configuration and the shipped table are both this.
pub type Rows = BTreeMap<String, Row>;

/// What is wrong with a table.
#[derive(Debug, thiserror::Error)]
pub enum PriceError {
    /// It can't be read.
    #[error("the price table can't be read: {0}")]
    Unreadable(#[from] toml::de::Error),
    /// A row's name is no provider and model.
    #[error("prices are for a `PROVIDER/MODEL`, which `{0}` isn't: write for example `openai/gpt-5`")]
    Name(String),
    /// A price is negative, not a number, or more than anything costs.
    #[error("the price `{what}` of `{row}` is {price}: give US dollars, 0 to 1000000")]
    Price {
        /// The row's name.
        row: String,
        /// Which of its prices.
        what: String,
        /// What is given.
        price: f64,
    },
}

/// The price of a model, ready to be counted with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Price {
    provider: String,
    model: ModelPattern,
    usual: Rates,
    long: Option<(u64, Rates)>,
    units: Vec<(String, u64)>,
    once: Vec<String>,
    call: u64,
    max_output: Option<u64>,
}

/// Billionths of a dollar for a million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rates {
    input: u64,
    output: u64,
    cache_read: u64,
    cache_write: u64,
    cache_write_1h: u64,
}

/// Prices by model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// The operator's first, and of each origin those with the longest names first.
    prices: Vec<Price>,
}

impl Table {
    /// The shipped table with the operator's rows before it.
    ///
    /// # Errors
    /// If a row can't be a price.
    pub fn new(operator: &Rows) -> Result<Table, PriceError> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Shipped {
            prices: Rows,
        }
        let shipped: Shipped = toml::from_str(SHIPPED)?;
        let mut prices = read(operator)?;
        prices.extend(read(&shipped.prices)?);
        Ok(Table { prices })
    }

    /// The price of a model at a provider, which has a name and an API. The model may have a date behind its name
    /// (`gpt-5-2025-08-07`, `claude-opus-4-1-20250805`, `-latest`), or Gemini's `models/` before it. A row for the
    /// provider's name goes before one for its API.
    pub fn find(&self, provider: &str, dialect: Dialect, model: &str) -> Option<&Price> {
        let model = model.strip_prefix("models/").unwrap_or(model);
        let undated = undated(model);
        let api = match dialect {
            Dialect::OpenAi => "openai",
            Dialect::Anthropic => "anthropic",
            Dialect::Gemini => "gemini",
        };
        let of = |provider: &str| {
            self.prices.iter().find(|price| {
                price.provider == provider
                    && (price.model.matches_name(model) || price.model.matches_name(undated))
            })
        };
        of(provider).or_else(|| of(api))
    }
}

impl Price {
    /// What was used costs this, rounded up; `None` if a unit in it has no price.
    pub fn cost(&self, tokens: &Tokens) -> Option<Usd> {
        let rates = match &self.long {
            Some((over, long)) if tokens.input > *over => long,
            _ => &self.usual,
        };
        let read = tokens.cache_read.min(tokens.input);
        let written = tokens.cache_write.min(tokens.input - read);
        let mut hour = 0;
        let mut cost = u128::from(self.call) * MILLION;
        for (name, count) in &tokens.units {
            if name == CACHE_WRITE_1H {
                hour = written.min(*count);
                continue;
            }
            let (_, price) = self.units.iter().find(|(known, _)| known == name)?;
            let count = if self.once.contains(name) { 1.min(*count) } else { *count };
            cost = cost.saturating_add(u128::from(*price) * u128::from(count) * MILLION);
        }
        for (count, rate) in [
            (tokens.input - read - written, rates.input),
            (read, rates.cache_read),
            (written - hour, rates.cache_write),
            (hour, rates.cache_write_1h),
            (tokens.output, rates.output),
        ] {
            cost = cost.saturating_add(u128::from(count) * u128::from(rate));
        }
        Some(Usd(u64::try_from(cost.div_ceil(MILLION)).unwrap_or(u64::MAX)))
    }

    /// The most that a call with so many tokens read and written costs, whatever the cache does: what to reserve.
    /// Units of server tools aren't in it; nobody knows how often they will be used.
    pub fn worst(&self, input: u64, output: u64) -> Usd {
        let rates = match &self.long {
            Some((over, long)) if input > *over => long,
            _ => &self.usual,
        };
        let dearest = rates.input.max(rates.cache_write).max(rates.cache_write_1h);
        let cost = u128::from(input) * u128::from(dearest) + u128::from(output) * u128::from(rates.output);
        let cost = (cost.div_ceil(MILLION)).saturating_add(u128::from(self.call));
        Usd(u64::try_from(cost).unwrap_or(u64::MAX))
    }

    /// Most tokens the model writes in an answer, if known.
    pub fn max_output(&self) -> Option<u64> {
        self.max_output
    }
}

fn read(rows: &Rows) -> Result<Vec<Price>, PriceError> {
    let mut prices = rows.iter().map(|(name, row)| price(name, row)).collect::<Result<Vec<_>, _>>()?;
    prices.sort_by_key(|price| std::cmp::Reverse(price.model.precision()));
    Ok(prices)
}

fn price(name: &str, row: &Row) -> Result<Price, PriceError> {
    let (provider, model) = name
        .split_once('/')
        .filter(|(provider, model)| !provider.is_empty() && !model.is_empty())
        .ok_or_else(|| PriceError::Name(name.to_owned()))?;
    let rates = |input, output, read: Option<f64>, write: Option<f64>, hour: Option<f64>| {
        let write = write.unwrap_or(input);
        Ok::<_, PriceError>(Rates {
            input: billionths(name, "input", input)?,
            output: billionths(name, "output", output)?,
            cache_read: billionths(name, "cache_read", read.unwrap_or(input))?,
            cache_write: billionths(name, "cache_write", write)?,
            cache_write_1h: billionths(name, "cache_write_1h", hour.unwrap_or(write))?,
        })
    };
    let long = row.long.as_ref().map(|long| {
        let rates = rates(long.input, long.output, long.cache_read, long.cache_write, long.cache_write_1h)?;
        Ok::<_, PriceError>((long.over, rates))
    });
    let units = row.units.iter().map(|(unit, price)| Ok((unit.clone(), billionths(name, unit, *price)?)));
    Ok(Price {
        provider: provider.to_owned(),
        model: ModelPattern::of_name(model).map_err(|_| PriceError::Name(name.to_owned()))?,
        usual: rates(row.input, row.output, row.cache_read, row.cache_write, row.cache_write_1h)?,
        long: long.transpose()?,
        units: units.collect::<Result<_, PriceError>>()?,
        once: row.once.clone(),
        call: billionths(name, "call", row.call)?,
        max_output: row.max_output,
    })
}

fn billionths(row: &str, what: &str, price: f64) -> Result<u64, PriceError> {
    if !(0.0..=1e6).contains(&price) {
        return Err(PriceError::Price { row: row.to_owned(), what: what.to_owned(), price });
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 10^15, checked above")]
    let billionths = (price * 1e9).round() as u64;
    Ok(billionths)
}

/// The name without the date or `-latest` behind it.
fn undated(model: &str) -> &str {
    let digits = |text: &str, lengths: &[usize]| {
        let parts = text.rsplit('-').take(lengths.len());
        parts
            .zip(lengths)
            .all(|(part, length)| part.len() == *length && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    if let Some(name) = model.strip_suffix("-latest") {
        return name;
    }
    for (date, lengths) in [("-20250101", &[8][..]), ("-2025-01-01", &[2, 2, 4])] {
        let end = model.len().saturating_sub(date.len());
        if let Some(name) = model.get(..end)
            && !name.is_empty()
            && model.get(end..).is_some_and(|suffix| suffix.starts_with('-'))
            && digits(model, lengths)
        {
            return name;
        }
    }
    model
}

#[cfg(test)]
mod tests;
