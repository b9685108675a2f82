//! The picture of the demo in the README: a real run, its output drawn as SVG.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::cargo;
use crate::error::Error;

/// Where the picture stands.
const PICTURE: &str = "guides/demo.svg";
/// What is run, and shown above its output.
const DEMO: [&str; 7] = ["demo", "--messages", "20000", "--crashes", "25", "--seed", "2026"];

/// Runs the demo and draws what it prints; answers the picture's path.
pub fn draw(root: &Path) -> Result<&'static str, Error> {
    let mut command = cargo::command(root);
    command.args(["run", "--release", "--quiet", "--"]).args(DEMO);
    let output =
        command.output().map_err(|error| Error::Environment(format!("cargo cannot be run: {error}")))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Error::Environment(format!("the demo failed, so it is not drawn: {text}")));
    }
    let svg = svg(&format!("$ oncebox {}", DEMO.join(" ")), &String::from_utf8_lossy(&output.stdout));
    let place = root.join(PICTURE);
    fs::write(&place, svg).map_err(|error| Error::Environment(format!("{}: {error}", place.display())))?;
    Ok(PICTURE)
}

/// Terminal text as a picture, verdict lines in colour.
fn svg(call: &str, text: &str) -> String {
    const LINE: usize = 20;
    let lines: Vec<&str> = std::iter::once(call).chain(text.trim_end().lines()).collect();
    let height = lines.len() * LINE + 36;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"760\" height=\"{height}\" role=\"img\" \
         aria-label=\"output of oncebox demo\">\n<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#1b1f24\"/>\n\
         <g font-family=\"ui-monospace, Menlo, Consolas, monospace\" font-size=\"14\" xml:space=\"preserve\">\n"
    );
    for (number, line) in lines.iter().enumerate() {
        let good = line.contains("exactly once")
            || line.trim_start().starts_with("lost")
            || line.contains("doubled");
        let colour = match number {
            0 => "#8b949e",
            _ if good => "#7ee787",
            _ => "#e6edf3",
        };
        let y = 30 + number * LINE;
        let escaped = line.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let _ = writeln!(svg, "<text x=\"20\" y=\"{y}\" fill=\"{colour}\">{escaped}</text>");
    }
    svg.push_str("</g>\n</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_terminal_shows_is_escaped() {
        let drawn = svg("$ x", "a <b> & c\n  lost   0");
        assert!(drawn.contains("a &lt;b&gt; &amp; c") && drawn.contains("#7ee787"), "{drawn}");
    }
}
