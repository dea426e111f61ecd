//! A daily span of time, UTC, over midnight too.

/// From one minute of the day up to, not including, another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    from: u16,
    to: u16,
}

/// Why a text is no span of time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadWindow {
    /// Not `HH:MM-HH:MM`.
    #[error("`{0}` is not `HH:MM-HH:MM` (UTC), e.g. `22:00-06:00`")]
    Shape(String),
    /// Begins where it ends.
    #[error("`{0}` begins where it ends; for the whole day leave `between` out")]
    Empty(String),
}

impl Window {
    /// Reads `HH:MM-HH:MM`; the end may be `24:00`.
    ///
    /// # Errors
    /// [`BadWindow`].
    pub fn parse(text: &str) -> Result<Self, BadWindow> {
        let shape = || BadWindow::Shape(text.to_owned());
        let (from, to) = text.split_once('-').ok_or_else(shape)?;
        let (from, to) = (minute(from).ok_or_else(shape)?, minute(to).ok_or_else(shape)?);
        if from >= 24 * 60 {
            return Err(shape());
        }
        if from == to || (from == 0 && to == 24 * 60) {
            return Err(BadWindow::Empty(text.to_owned()));
        }
        Ok(Self { from, to })
    }

    /// Whether a minute of the day (0–1439) lies in it.
    #[must_use]
    pub fn holds(self, minute: u16) -> bool {
        if self.from < self.to {
            (self.from..self.to).contains(&minute)
        } else {
            minute >= self.from || minute < self.to
        }
    }
}

fn minute(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    let two = |text: &str| -> Option<u16> {
        (text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| text.parse().ok())
            .flatten()
    };
    let (hour, minute) = (two(hour)?, two(minute)?);
    let sum = hour * 60 + minute;
    (minute < 60 && sum <= 24 * 60).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::{BadWindow, Window};

    #[test]
    fn a_span_over_midnight_holds_on_both_sides_of_it() {
        let night = Window::parse("22:00-06:00").unwrap();
        assert!(night.holds(22 * 60) && night.holds(0) && night.holds(5 * 60 + 59));
        assert!(!night.holds(6 * 60) && !night.holds(21 * 60 + 59));
        let late = Window::parse("23:00-24:00").unwrap();
        assert!(late.holds(1439) && !late.holds(0));
    }

    #[test]
    fn a_text_that_is_no_span_is_refused() {
        for text in
            ["", "22-06", "22:00", "22:60-23:00", "24:00-01:00", "24:01-01:00", "+1:00-02:00", "1:00-2:00"]
        {
            assert_eq!(Window::parse(text), Err(BadWindow::Shape(text.into())), "{text}");
        }
        for text in ["06:00-06:00", "00:00-24:00"] {
            assert_eq!(Window::parse(text), Err(BadWindow::Empty(text.into())));
        }
    }
}
