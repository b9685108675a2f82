//! Texts for a person's terminal.

use std::io::IsTerminal;
use std::time::Duration;

/// How a word is painted on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colour {
    /// As it is.
    Plain,
    /// Titles.
    Bold,
    /// A person must act.
    Red,
    /// Look at it.
    Yellow,
    /// All is well.
    Green,
}

impl Colour {
    /// The colour of a state's word.
    fn of(word: &str) -> Self {
        match word {
            "dead" | "fault" => Self::Red,
            "retrying" | "held" | "warning" | "cancelled" => Self::Yellow,
            "done" => Self::Green,
            _ => Self::Plain,
        }
    }

    fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => "1",
            Self::Red => "31",
            Self::Yellow => "33",
            Self::Green => "32",
        }
    }
}

/// Whether standard output is a terminal of somebody who has not said `NO_COLOR`.
fn in_colour() -> bool {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|text| !text.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
    std::io::stdout().is_terminal() && !plain && !dumb
}

/// A text in colour, on a terminal only. What comes from others must be [`safe`] already.
pub(crate) fn paint(text: &str, colour: Colour) -> String {
    painted(text, colour, in_colour())
}

/// A state's word in its colour.
pub(crate) fn state(word: &str) -> String {
    paint(word, Colour::of(word))
}

fn painted(text: &str, colour: Colour, in_colour: bool) -> String {
    if !in_colour || colour == Colour::Plain {
        return text.to_owned();
    }
    format!("\u{1b}[{}m{text}\u{1b}[0m", colour.code())
}

/// A text in which nothing moves the cursor or paints the screen: ids, errors and headers come from others.
pub(crate) fn safe(text: &str) -> String {
    text.chars()
        .flat_map(|c| if c.is_control() { c.escape_debug().collect::<Vec<_>>() } else { vec![c] })
        .collect()
}

/// The same, cut to a width.
pub(crate) fn short(text: &str, most: usize) -> String {
    let text = safe(text);
    if text.chars().count() <= most {
        return text;
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// Rows under their titles, in columns as wide as they need.
pub(crate) fn table(titles: &[&str], rows: &[Vec<String>]) -> String {
    table_in(titles, rows, in_colour())
}

fn table_in(titles: &[&str], rows: &[Vec<String>], in_colour: bool) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([titles[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let line = |cells: &[&str], colour: &dyn Fn(&str) -> Colour| {
        let last = cells.len().saturating_sub(1);
        let padded = cells.iter().zip(&widths).enumerate().map(|(place, (cell, width))| {
            let cell_width = cell.chars().count();
            // Nothing after the last cell of a line.
            let room = if place == last { 0 } else { width - cell_width };
            format!("{}{}", painted(cell, colour(cell), in_colour), " ".repeat(room))
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = line(titles, &|_| Colour::Bold);
    for row in rows {
        let cells: Vec<&str> = row.iter().map(String::as_str).collect();
        text.push_str(&line(&cells, &Colour::of));
    }
    text
}

/// `3 d`, `2 h`, `5 min`, `12 s`.
pub(crate) fn length(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(safe("a\n\u{1b}[2Jé\u{7}"), "a\\n\\u{1b}[2Jé\\u{7}");
        assert_eq!(short("abcdef", 4), "abc…");
    }

    #[test]
    fn columns_are_as_wide_as_they_need() {
        let rows = [vec!["longer".to_owned(), "1".to_owned()], vec!["x".to_owned(), "22".to_owned()]];
        assert_eq!(table_in(&["name", "n"], &rows, false), "name    n\nlonger  1\nx       22\n");
    }

    #[test]
    fn colours_do_not_move_columns_and_are_left_out_unless_wanted() {
        let rows = [vec!["dead".to_owned(), "1".to_owned()], vec!["scheduled".to_owned(), "2".to_owned()]];
        let plain = table_in(&["STATE", "N"], &rows, false);
        let coloured = table_in(&["STATE", "N"], &rows, true);
        assert!(
            !plain.contains('\u{1b}') && coloured.contains("\u{1b}[31mdead\u{1b}[0m       1\n"),
            "{coloured:?}"
        );
        let mut stripped = coloured;
        for code in ["\u{1b}[0m", "\u{1b}[1m", "\u{1b}[31m"] {
            stripped = stripped.replace(code, "");
        }
        assert_eq!(stripped, plain);
    }
}
