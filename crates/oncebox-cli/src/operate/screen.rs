//! Texts for a person's terminal.

use std::time::Duration;

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
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([titles[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = line(titles.to_vec());
    for row in rows {
        text.push_str(&line(row.iter().map(String::as_str).collect()));
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

    /// Security rule 19.
    #[test]
    fn rule_19_control_characters_do_not_reach_the_terminal() {
        assert_eq!(safe("a\n\u{1b}[2Jé\u{7}"), "a\\n\\u{1b}[2Jé\\u{7}");
        assert_eq!(short("abcdef", 4), "abc…");
    }

    #[test]
    fn columns_are_as_wide_as_they_need() {
        let rows = [vec!["longer".to_owned(), "1".to_owned()], vec!["x".to_owned(), "22".to_owned()]];
        assert_eq!(table(&["name", "n"], &rows), "name    n\nlonger  1\nx       22\n");
    }
}
