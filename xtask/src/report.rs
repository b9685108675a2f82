//! How the steps of a run went: headings while it runs, a table and one closing line at the end.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::error::Error;

/// The result of one step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Everything in it was fine.
    Passed,
    /// Something in it was not; the text is for the table.
    Failed(String),
    /// It did not run, for the reason given.
    Skipped(&'static str),
}

/// The steps so far.
#[derive(Debug, Default)]
pub struct Report {
    steps: Vec<Step>,
}

#[derive(Debug)]
struct Step {
    name: &'static str,
    outcome: Outcome,
    time: Duration,
}

impl Report {
    /// Announces and runs one step; true when it passed.
    pub fn step(
        &mut self,
        name: &'static str,
        run: impl FnOnce() -> Result<Outcome, Error>,
    ) -> Result<bool, Error> {
        println!("\n==> {name}");
        let started_at = Instant::now();
        let outcome = run()?;
        let passed = outcome == Outcome::Passed;
        self.steps.push(Step { name, outcome, time: started_at.elapsed() });
        Ok(passed)
    }

    /// Notes a step that cannot run because an earlier one failed.
    pub fn skip(&mut self, name: &'static str, why: &'static str) {
        println!("\n==> {name}: skipped, {why}");
        self.steps.push(Step { name, outcome: Outcome::Skipped(why), time: Duration::ZERO });
    }

    /// True when no step failed or was skipped.
    pub fn passed(&self) -> bool {
        self.steps.iter().all(|step| step.outcome == Outcome::Passed)
    }

    /// The table of the steps, ending in the line with the overall result.
    pub fn table(&self) -> String {
        let width = self.steps.iter().map(|step| step.name.len()).max().unwrap_or(0);
        let mut table = String::new();
        for Step { name, outcome, time } in &self.steps {
            let seconds = time.as_secs_f64();
            // Writing to a `String` cannot fail.
            let _ = match outcome {
                Outcome::Passed => writeln!(table, "{name:width$}  {seconds:7.1} s  passed"),
                Outcome::Failed(why) => writeln!(table, "{name:width$}  {seconds:7.1} s  FAILED: {why}"),
                Outcome::Skipped(why) => writeln!(table, "{name:width$}        -    skipped: {why}"),
            };
        }
        table.push_str(&self.closing_line());
        table
    }

    fn closing_line(&self) -> String {
        let total: f64 = self.steps.iter().map(|step| step.time.as_secs_f64()).sum();
        let count = self.steps.len();
        let failed = self.steps.iter().filter(|step| matches!(step.outcome, Outcome::Failed(_)));
        let failed: Vec<&str> = failed.map(|step| step.name).collect();
        let skipped = self.steps.iter().filter(|step| matches!(step.outcome, Outcome::Skipped(_))).count();
        match (failed.len(), skipped) {
            (0, 0) => format!("passed: {count} of {count} steps in {total:.1} s"),
            (_, 0) => {
                format!("FAILED: {} of {count} steps in {total:.1} s: {}", failed.len(), failed.join(", "))
            }
            _ => format!(
                "FAILED: {} of {count} steps in {total:.1} s, {skipped} skipped: {}",
                failed.len(),
                failed.join(", ")
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failed_step_fails_the_run_and_is_named_in_the_last_line() {
        let mut report = Report::default();
        assert!(report.step("formatting", || Ok(Outcome::Passed)).unwrap());
        assert!(!report.step("build", || Ok(Outcome::Failed("exit status: 101".to_owned()))).unwrap());
        report.skip("tests", "the build failed");

        assert!(!report.passed());
        let table = report.table();
        assert!(table.contains("FAILED: exit status: 101"), "{table}");
        assert!(table.contains("skipped: the build failed"), "{table}");
        assert!(table.lines().last().unwrap().ends_with("1 skipped: build"), "{table}");
    }

    #[test]
    fn all_passed_is_said_so() {
        let mut report = Report::default();
        report.step("one", || Ok(Outcome::Passed)).unwrap();
        report.step("two", || Ok(Outcome::Passed)).unwrap();
        assert!(report.passed());
        assert!(report.table().lines().last().unwrap().starts_with("passed: 2 of 2 steps"));
    }
}
