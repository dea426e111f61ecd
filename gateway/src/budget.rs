//! Budgets of model use (A18): reserved at the worst case before a call is sent, settled at what it came to.
//!
//! A call is admitted while anything of each budget is left, counting what calls under way may come to; so parallel calls
//! overshoot by no more than one of them, and a budget can be used to its end. The counts are those of the agent's ledger,
//! which follows the same records with the same arithmetic ([`strait_contract::budget`]): a gateway that starts is told
//! where it stands.
//!
//! Architecture invariant: nothing here looks at more than one agent's and one run's counts.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use strait_contract::{
    budget::{Account, AgentUse, Amount, Budget, Charge, Day, Scope, Unit, Used},
    code::Code,
    ids::AgentName,
    model::Usd,
};

use crate::{gateway::Gateway, record::now_ms, runs::Run};

/// What a call may use at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worst {
    /// Tokens, read and written.
    pub tokens: u64,
    /// Money; `None` if the model's price isn't known.
    pub usd: Option<Usd>,
}

/// Why a call may not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A budget is used up.
    #[error("the budget of agent `{agent}` {} is used up: {} of {}{}", span(*.scope), .unit.text(*.used), .unit.text(*.limit), under_way(*.unit, *.held))]
    UsedUp {
        /// Whose.
        agent: AgentName,
        /// Which of its budgets.
        scope: Scope,
        /// What is used up.
        unit: Unit,
        /// How much there was.
        limit: u64,
        /// How much is used, by calls under way too.
        used: u64,
        /// How much of it calls under way may use at most, and may give back.
        held: u64,
    },
    /// The model has no price, and money is all that the agent's budget limits.
    #[error("agent `{agent}` has a budget of money alone, and the price of this model isn't known")]
    Unpriced {
        /// Whose.
        agent: AgentName,
    },
}

fn span(scope: Scope) -> &'static str {
    match scope {
        Scope::Run => "for this run",
        Scope::Day => "for today (UTC)",
        Scope::Total => "in total",
    }
}

fn under_way(unit: Unit, held: u64) -> String {
    if held == 0 {
        String::new()
    } else {
        format!(", of which calls under way hold up to {}", unit.text(held))
    }
}

impl Refusal {
    /// The code of the refusal.
    pub fn code(&self) -> Code {
        Code::BudgetExceeded
    }

    /// Whether the same call may pass as soon as calls under way are over.
    pub fn passes_later(&self) -> bool {
        matches!(self, Self::UsedUp { used, held, limit, .. } if used.saturating_sub(*held) < *limit)
    }

    /// What to do next.
    pub fn hint(&self) -> String {
        let (agent, key) = match self {
            Self::Unpriced { agent } => {
                return format!(
                    "the operator gives the model a price under `[prices]`, or `agents.{agent}.budget` a limit of \
                     `tokens` or `calls`, then `strait reload`"
                );
            }
            Self::UsedUp { .. } if self.passes_later() => {
                return "try again when calls under way are over; a lower limit of output tokens holds less"
                    .to_owned();
            }
            Self::UsedUp { agent, scope, unit, .. } => {
                (agent, format!("`agents.{agent}.budget.{scope}.{}`", unit.as_str()))
            }
        };
        let or = match self {
            Self::UsedUp { scope: Scope::Run, .. } => "a new run begins at zero; or ".to_owned(),
            Self::UsedUp { scope: Scope::Day, .. } => "it begins anew at 00:00 UTC; or ".to_owned(),
            _ => format!("`strait budget reset {agent}` begins it anew; or "),
        };
        format!("{or}the operator raises {key}, then `strait reload`")
    }
}

/// The use of every agent. One short lock for each.
#[derive(Debug, Default)]
pub struct Budgets {
    agents: RwLock<HashMap<AgentName, Arc<Book>>>,
    /// Whether calls are counted here: from then on the agent's word is not taken for it.
    counting: AtomicBool,
}

#[derive(Debug, Default)]
struct Book(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    budget: Budget,
    account: Account,
}

/// What one run has used. Changed under its agent's lock alone.
#[derive(Debug, Default)]
pub struct RunUsed(Mutex<Used>);

impl RunUsed {
    /// What it has used so far.
    pub fn get(&self) -> Used {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Used> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change under this lock is complete in itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reserves what a call of this run may use at most.
///
/// # Errors
/// [`Refusal`] if nothing is left of a budget.
pub fn reserve(gateway: &Gateway, run: &Run, worst: Worst) -> Result<Reservation, Refusal> {
    gateway.budgets.reserve(&run.info.agent, &run.models, worst, Day::of_ms(now_ms()))
}

impl Budgets {
    /// Reserves what a call may use at most, at the day that the clock shows.
    ///
    /// # Errors
    /// [`Refusal`] if nothing is left of a budget.
    pub fn reserve(
        &self,
        agent: &AgentName,
        run: &Arc<RunUsed>,
        worst: Worst,
        clock: Day,
    ) -> Result<Reservation, Refusal> {
        let book = self.book(agent);
        let mut state = book.lock();
        let day = state.account.day_at(clock);
        state.account.turn(day);
        let mut used = run.lock();
        state.admits(agent, &used, worst)?;
        let amount = Amount { calls: 1, tokens: worst.tokens, usd: worst.usd.unwrap_or_default() };
        let held = Charge { day, amount };
        state.account.hold(&held);
        used.hold(amount);
        drop((used, state));
        let run = Arc::clone(run);
        Ok(Reservation(Arc::new(Held { book, run, held, state: Mutex::new(Progress::Unsent) })))
    }

    /// Budgets from now on; an agent that isn't listed has none.
    pub fn set(&self, budgets: Vec<(AgentName, Budget)>) {
        let listed: HashMap<_, _> = budgets.into_iter().collect();
        for agent in listed.keys() {
            self.book(agent);
        }
        for (agent, book) in self.agents.read().unwrap_or_else(PoisonError::into_inner).iter() {
            book.lock().budget = listed.get(agent).copied().unwrap_or_default();
        }
    }

    /// The agent's ledger says what an agent's runs have used.
    pub fn agent_use(&self, told: AgentUse) {
        let book = self.book(&told.agent);
        let mut state = book.lock();
        if self.counting.load(Ordering::Acquire) {
            state.account.follow(told.account.cleared);
        } else {
            state.account = told.account.closed();
        }
    }

    /// The agent's ledger says what a live run has used.
    pub fn run_use(&self, run: &RunUsed, spent: Amount) {
        if !self.counting.load(Ordering::Acquire) {
            *run.lock() = Used { spent, held: Amount::default() };
        }
    }

    /// The agent has told everything: from now on this gateway counts by itself.
    pub fn begin(&self) {
        self.counting.store(true, Ordering::Release);
    }

    /// What an agent's runs have used.
    pub fn account(&self, agent: &AgentName) -> Account {
        self.book(agent).lock().account
    }

    /// The smallest part that is left of any limit of an agent and run, from 1 to 0; 1 without a limit.
    pub fn left(&self, agent: &AgentName, run: &RunUsed) -> f64 {
        let book = self.book(agent);
        let state = book.lock();
        let used = run.get();
        let parts = Scope::ALL.iter().flat_map(|scope| {
            let (limits, used) = (state.budget.of(*scope), state.used(*scope, &used).all());
            Unit::ALL.iter().filter_map(move |unit| Some(part_left(used.of(*unit), limits.of(*unit)?)))
        });
        parts.fold(1.0, f64::min)
    }

    fn book(&self, agent: &AgentName) -> Arc<Book> {
        if let Some(book) = self.agents.read().unwrap_or_else(PoisonError::into_inner).get(agent) {
            return Arc::clone(book);
        }
        let mut agents = self.agents.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(agents.entry(agent.clone()).or_default())
    }
}

#[expect(clippy::cast_precision_loss, reason = "a part, for a comparison with one that a person wrote")]
fn part_left(used: u64, limit: u64) -> f64 {
    if limit == 0 { 0.0 } else { limit.saturating_sub(used) as f64 / limit as f64 }
}

impl State {
    fn used(&self, scope: Scope, run: &Used) -> Used {
        match scope {
            Scope::Run => *run,
            Scope::Day => self.account.today,
            Scope::Total => self.account.total,
        }
    }

    fn admits(&self, agent: &AgentName, run: &Used, worst: Worst) -> Result<(), Refusal> {
        for scope in Scope::ALL {
            let used = self.used(scope, run);
            if let Some((unit, limit)) = self.budget.of(scope).reached(&used.all()) {
                let (used, held) = (used.all().of(unit), used.held.of(unit));
                return Err(Refusal::UsedUp { agent: agent.clone(), scope, unit, limit, used, held });
            }
        }
        let limits = |unit| Scope::ALL.iter().any(|scope| self.budget.of(*scope).of(unit).is_some());
        if worst.usd.is_none() && limits(Unit::Usd) && !limits(Unit::Tokens) && !limits(Unit::Calls) {
            return Err(Refusal::Unpriced { agent: agent.clone() });
        }
        Ok(())
    }
}

/// What is reserved for one call. Clones are the same reservation. Once the last is dropped, a call that was sent and
/// never settled has used what was reserved for it, and one that was never sent nothing.
#[derive(Clone, Debug)]
pub struct Reservation(Arc<Held>);

#[derive(Debug)]
struct Held {
    book: Arc<Book>,
    run: Arc<RunUsed>,
    held: Charge,
    state: Mutex<Progress>,
}

#[derive(Clone, Copy, Debug)]
enum Progress {
    Unsent,
    Sent,
    Over(Charge),
}

impl Reservation {
    /// What is reserved: what the `decided` line says.
    pub fn held(&self) -> Charge {
        self.0.held
    }

    /// The call is about to be sent: from now on it counts whatever becomes of it. Settled calls that are sent again (a
    /// fallback) are settled once, at the sum of both.
    pub fn sent(&self) {
        let mut state = self.0.lock();
        if matches!(*state, Progress::Unsent) {
            *state = Progress::Sent;
        }
    }

    /// The call is over and came to this; `usd` is `None` if its price isn't known. Gives what the `done` line is to say.
    /// Only the first word counts.
    pub fn settle(&self, tokens: u64, usd: Option<Usd>) -> Charge {
        self.0.end(Amount { calls: 1, tokens, usd: usd.unwrap_or_default() })
    }

    /// The call is over, and nobody has said what it came to: gives what the `done` line is to say.
    pub fn close(&self) -> Charge {
        self.0.close()
    }
}

impl Held {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) -> Charge {
        let amount = match *self.lock() {
            Progress::Unsent => Amount::default(),
            Progress::Sent => self.held.amount,
            Progress::Over(charge) => return charge,
        };
        self.end(amount)
    }

    fn end(&self, amount: Amount) -> Charge {
        let mut state = self.lock();
        if let Progress::Over(charge) = *state {
            return charge;
        }
        let charge = Charge { amount, ..self.held };
        *state = Progress::Over(charge);
        let mut book = self.book.lock();
        book.account.settle(&self.held, amount);
        self.run.lock().settle(self.held.amount, amount);
        charge
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
