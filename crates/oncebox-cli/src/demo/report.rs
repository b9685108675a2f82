//! What came of it.

use std::fmt::Write;

use indicatif::HumanCount;
use serde::Serialize;

use super::Options;

/// The result, as `--json` prints it.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) messages: u64,
    pub(crate) deliveries: u64,
    /// Deliveries beyond one of each message.
    pub(crate) duplicates: u64,
    /// Deliveries taken from a runner that was killed or frozen, and made again.
    pub(crate) redelivered: u64,
    pub(crate) crashes: u64,
    /// Kills of processes with unacknowledged deliveries.
    pub(crate) crashes_holding: u64,
    /// Kills with new effects since the one before and more to come.
    pub(crate) crashes_handling: u64,
    pub(crate) pauses: u64,
    pub(crate) effects: u64,
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    pub(crate) seconds: f64,
    pub(crate) seed: u64,
    #[serde(skip)]
    pub(crate) dead_letters: u64,
}

impl Report {
    /// Whether every message counted exactly once.
    pub(crate) fn is_clean(&self) -> bool {
        self.lost == 0 && self.doubled == 0 && self.effects == self.messages
    }

    /// As a person reads it.
    pub(crate) fn text(&self, store: &str, options: &Options) -> String {
        let mut text =
            format!("\noncebox demo on {store}: {} processes, seed {}\n\n", options.processes, self.seed);
        let mut line = |name: &str, value: u64, note: &str| {
            let line = format!("  {name:<20}{:>12}   {note}", HumanCount(value).to_string());
            let _ = writeln!(text, "{}", line.trim_end());
        };
        line("messages", self.messages, "");
        line("deliveries", self.deliveries, "what the at-least-once source handed over");
        line("duplicates", self.duplicates, "deliveries less messages: none of them may count");
        line("redelivered", self.redelivered, "of these, unacknowledged at a kill or a freeze");
        let when = format!(
            "kill -9: {} with unacknowledged deliveries, {} while effects grew",
            HumanCount(self.crashes_holding),
            HumanCount(self.crashes_handling)
        );
        line("processes killed", self.crashes, if self.crashes > 0 { &when } else { "" });
        if self.pauses > 0 {
            line("processes frozen", self.pauses, "and gone on, when others had their work");
        }
        line("effects", self.effects, "rows in a table without a unique key");
        let dead = format!("{} ended as dead letters: kept, but not handled", HumanCount(self.dead_letters));
        line("lost", self.lost, if self.dead_letters > 0 { &dead } else { "" });
        line("doubled", self.doubled, "");
        if self.crashes_holding * 2 < self.crashes {
            let _ = writeln!(
                text,
                "\n  most of the killed had nothing in hand: give them more with `--messages`"
            );
        }
        let _ = match self.is_clean() {
            true => writeln!(text, "\n  every message counted exactly once, in {:.1} s\n", self.seconds),
            false => writeln!(
                text,
                "\n  NOT exactly once, in {:.1} s; the same traffic again: the same options and `--seed {}`\n",
                self.seconds, self.seed
            ),
        };
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            messages: 2000,
            deliveries: 6100,
            duplicates: 4100,
            redelivered: 77,
            crashes: 3,
            crashes_holding: 2,
            crashes_handling: 1,
            pauses: 0,
            effects: 2000,
            lost: 0,
            doubled: 0,
            seconds: 1.5,
            seed: 42,
            dead_letters: 0,
        }
    }

    fn text(report: &Report) -> String {
        let options = Options::for_tests(&["demo"]).expect("the defaults are right");
        report.text("SQLite", &options)
    }

    #[test]
    fn a_clean_run_says_so() {
        let text = text(&report());
        assert!(text.contains("every message counted exactly once, in 1.5 s"), "{text}");
        assert!(text.contains("2 with unacknowledged deliveries, 1 while effects grew"), "{text}");
        assert!(!text.contains("nothing in hand"), "{text}");
        assert!(!text.contains("frozen") && !text.contains("dead letter"), "{text}");
        assert!(!text.lines().any(|line| line.ends_with(' ')), "{text}");
    }

    #[test]
    fn a_failed_run_can_be_run_again_and_says_what_is_a_dead_letter() {
        let text = text(&Report { effects: 1999, lost: 1, dead_letters: 1, pauses: 2, ..report() });
        assert!(text.contains("NOT exactly once") && text.contains("`--seed 42`"), "{text}");
        assert!(text.contains("1 ended as dead letters") && text.contains("processes frozen"), "{text}");
    }

    #[test]
    fn kills_that_prove_nothing_are_told_of() {
        let text = text(&Report { crashes_holding: 1, ..report() });
        assert!(text.contains("most of the killed had nothing in hand"), "{text}");
    }

    #[test]
    fn json_has_every_figure_and_the_seed() {
        let json = serde_json::to_value(report()).expect("it is plain data");
        let names: Vec<&String> = json.as_object().expect("an object").keys().collect();
        for name in
            ["messages", "deliveries", "duplicates", "redelivered", "crashes", "pauses", "effects", "lost"]
        {
            assert!(names.iter().any(|one| *one == name), "{name}");
        }
        assert_eq!((&json["seed"], &json["doubled"]), (&42.into(), &0.into()));
        assert!(json["seconds"].is_f64() && names.len() == 13, "{names:?}");
    }
}
