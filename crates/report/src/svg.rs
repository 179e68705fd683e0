//! Writing SVG: escaped text, elements, and the style that all charts share.

use std::fmt::Write as _;

use crate::palette::SERIES;

/// The width of every chart in user units.
pub(crate) const WIDTH: f64 = 860.0;

/// Turns text into what may stand in an element or in a quoted attribute of XML and HTML.
///
/// Control characters are not allowed in XML at all, so they become the replacement character.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(character),
            other if other.is_control() || matches!(other, '\u{FFFE}' | '\u{FFFF}') => escaped.push('\u{FFFD}'),
            other => escaped.push(other),
        }
    }
    escaped
}

/// The style of charts. Every colour also stands as an attribute at its element, for programs that
/// know no style sheets; the style adds what depends on the page being dark.
pub(crate) fn style() -> String {
    let mut style = String::from(
        "svg.chart{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;font-size:12px}\
         svg.chart text{font-variant-numeric:tabular-nums}\
         @media(prefers-color-scheme:dark){\
         svg.chart .paper{fill:#14171a}\
         svg.chart .ink{fill:#e4e6e8}svg.chart .soft{fill:#a3a9af}\
         svg.chart .grid{stroke:#2b3036}svg.chart .rule{stroke:#6d747b}\
         svg.chart .band{fill:#8a939b}",
    );
    for (index, colour) in SERIES.iter().enumerate() {
        let dark = colour.dark;
        write!(style, "svg.chart .s{index}{{stroke:{dark}}}svg.chart .f{index}{{fill:{dark}}}")
            .expect("writing to a string cannot fail");
    }
    style.push('}');
    style
}

/// A picture in the making.
pub(crate) struct Canvas {
    body: String,
    pub(crate) height: f64,
}

/// How a text stands to its point.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    fn word(self) -> &'static str {
        match self {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        }
    }
}

impl Canvas {
    pub(crate) fn new(height: f64) -> Canvas {
        Canvas { body: String::new(), height }
    }

    /// Adds markup that was made here. Text from outside must have been escaped.
    pub(crate) fn raw(&mut self, markup: &str) {
        self.body.push_str(markup);
        self.body.push('\n');
    }

    /// Text in the main colour.
    pub(crate) fn ink(&mut self, x: f64, y: f64, anchor: Anchor, text: &str) {
        self.text(x, y, anchor, text, "class=\"ink\" fill=\"#1b1f23\"");
    }

    /// Text in the softer colour, for ticks and notes.
    pub(crate) fn soft(&mut self, x: f64, y: f64, anchor: Anchor, text: &str) {
        self.text(x, y, anchor, text, "class=\"soft\" fill=\"#57606a\"");
    }

    pub(crate) fn text(&mut self, x: f64, y: f64, anchor: Anchor, text: &str, attributes: &str) {
        let (x, y, anchor, text) = (num(x), num(y), anchor.word(), escape(text));
        self.raw(&format!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" {attributes}>{text}</text>"));
    }

    pub(crate) fn grid_line(&mut self, x1: f64, y1: f64, x2: f64, y2: f64) {
        self.line(x1, y1, x2, y2, "class=\"grid\" stroke=\"#e3e6e9\"");
    }

    pub(crate) fn line(&mut self, x1: f64, y1: f64, x2: f64, y2: f64, attributes: &str) {
        let (x1, y1, x2, y2) = (num(x1), num(y1), num(x2), num(y2));
        self.raw(&format!("<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" {attributes}/>"));
    }

    pub(crate) fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, attributes: &str) {
        let (x, y, width, height) = (num(x), num(y), num(width.max(0.0)), num(height.max(0.0)));
        self.raw(&format!("<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" {attributes}/>"));
    }

    /// The finished element, to stand in a page that has [`style`].
    pub(crate) fn inline(&self, title: &str) -> String {
        let (width, height, title) = (num(WIDTH), num(self.height), escape(title));
        format!(
            "<svg class=\"chart\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\">\n\
             {}</svg>\n",
            self.body
        )
    }

    /// A file of its own.
    pub(crate) fn standalone(&self, title: &str) -> String {
        let (width, height, title) = (num(WIDTH), num(self.height), escape(title));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\" font-size=\"12\" \
             role=\"img\">\n<title>{title}</title>\n<style>{}</style>\n\
             <rect class=\"paper\" width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{}</svg>\n",
            style(),
            self.body
        )
    }
}

/// A coordinate with as many digits as a screen can show.
pub(crate) fn num(value: f64) -> String {
    assert!(value.is_finite(), "coordinates come from Laid::place, which gives none for such values");
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// About how wide a text is at the size of charts. Only layout depends on it, so an average of
/// common fonts is enough.
pub(crate) fn text_width(text: &str) -> f64 {
    let narrow = |character: char| matches!(character, 'i' | 'j' | 'l' | 't' | 'f' | 'I' | '.' | ',' | ':' | ' ' | '|');
    text.chars()
        .map(|character| match character {
            character if narrow(character) => 4.0,
            'm' | 'w' | 'M' | 'W' | '%' => 10.5,
            character if character.is_uppercase() => 8.5,
            character => 6.9 * unicode_width::UnicodeWidthChar::width(character).unwrap_or(1) as f64,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_outside_becomes_markup() {
        assert_eq!(
            escape("</text><script>alert('1 & \"2\"')</script>\u{0}\u{1b}[31m"),
            "&lt;/text&gt;&lt;script&gt;alert(&#39;1 &amp; &quot;2&quot;&#39;)&lt;/script&gt;\u{FFFD}\u{FFFD}[31m"
        );
    }

    #[test]
    fn coordinates_are_short() {
        assert_eq!([num(1.0), num(1.239), num(-0.001), num(120.50)], ["1", "1.24", "0", "120.5"]);
    }
}
