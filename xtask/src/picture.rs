//! The picture of the demo in the README: a real run, its output drawn as SVG.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::cargo;
use crate::error::Error;

/// Where the picture stands.
const PICTURE: &str = "guides/demo.svg";
/// What is run, and shown above its output: the command of the README, with the numbers it has by itself.
const DEMO: [&str; 4] = ["run", "--release", "--", "demo"];

/// Runs the demo and draws what it prints; answers the picture's path.
pub fn draw(root: &Path) -> Result<&'static str, Error> {
    let mut command = cargo::command(root);
    let output = command
        .args(DEMO)
        .output()
        .map_err(|error| Error::Environment(format!("cargo cannot be run: {error}")))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Error::Environment(format!("the demo failed, so it is not drawn: {text}")));
    }
    let svg = svg(&format!("cargo {}", DEMO.join(" ")), &String::from_utf8_lossy(&output.stdout));
    let place = root.join(PICTURE);
    fs::write(&place, svg).map_err(|error| Error::Environment(format!("{}: {error}", place.display())))?;
    Ok(PICTURE)
}

/// Terminal text as a picture, verdict lines in colour.
fn svg(call: &str, text: &str) -> String {
    const LINE: usize = 20;
    /// Of ten letters: the widest of the fonts below has 0.602 of the font's size for each.
    const TEN_LETTERS: usize = 85;
    let prompt = format!("$ {call}");
    let lines: Vec<&str> = std::iter::once(prompt.as_str()).chain(text.trim_end().lines()).collect();
    let longest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    let width = (longest * TEN_LETTERS / 10 + 40).max(600);
    let height = lines.len() * LINE + 36;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#1b1f24\"/>\n\
         <g font-family=\"ui-monospace, Menlo, Consolas, monospace\" font-size=\"14\" xml:space=\"preserve\">\n",
        escaped(&spoken(call, text))
    );
    for (number, line) in lines.iter().enumerate() {
        let good = line.contains("exactly once")
            || line.trim_start().starts_with("lost")
            || line.trim_start().starts_with("doubled");
        let colour = match number {
            0 => "#8b949e",
            _ if good => "#7ee787",
            _ => "#e6edf3",
        };
        let y = 30 + number * LINE;
        let escaped = escaped(line);
        let _ = writeln!(svg, "<text x=\"20\" y=\"{y}\" fill=\"{colour}\">{escaped}</text>");
    }
    svg.push_str("</g>\n</svg>\n");
    svg
}

/// All of it in one sentence, for those who hear it instead.
fn spoken(call: &str, text: &str) -> String {
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let lines: Vec<String> = lines.filter(|line| !line.is_empty()).collect();
    format!("A terminal runs {call} and shows: {}", lines.join("; "))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_terminal_shows_is_escaped() {
        let drawn = svg("x", "a <b> & \"c\"\n  lost   0");
        assert!(drawn.contains("a &lt;b&gt; &amp; &quot;c&quot;") && drawn.contains("#7ee787"), "{drawn}");
    }

    #[test]
    fn the_longest_line_has_room() {
        let drawn = svg("x", &format!("  {}\n  ·\n", "·".repeat(98)));
        assert!(drawn.contains("viewBox=\"0 0 890 "), "{drawn}");
    }

    #[test]
    fn the_picture_scales_and_can_be_heard() {
        let drawn = svg("x y", "\n  messages      10\n\n  lost           0\n");
        assert!(drawn.contains("viewBox=\"0 0 600 "), "{drawn}");
        assert!(
            drawn.contains("aria-label=\"A terminal runs x y and shows: messages 10; lost 0\""),
            "{drawn}"
        );
    }
}
