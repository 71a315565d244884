//! Renders the texts in this directory as roff. Their markup:
//!
//! - `# TITLE` starts a section, an empty line a paragraph.
//! - Lines indented by four spaces are shown as they are: examples, tables.
//! - A paragraph that starts with `TERM:: ` tells what TERM means.
//! - `` `words` `` are words to type, shown in bold.
//! - `*WORD*` stands for a value, shown in italics.

use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

/// The prefix of a verbatim line.
const INDENT: &str = "    ";

/// Renders a text as roff.
pub(super) fn render(text: impl AsRef<str>) -> Roff {
    let mut roff = Roff::new();
    for block in blocks(text.as_ref()) {
        match block {
            Block::Title(title) => _ = roff.control("SH", [title]),
            Block::Verbatim(lines) => verbatim(&mut roff, &lines),
            Block::Paragraph(text) => paragraph(&mut roff, &text),
        }
    }
    roff
}

/// Renders a text for a terminal without man(1), with lines of at most 80 columns.
pub(super) fn plain(text: &str) -> String {
    let mut lines = Vec::new();
    for block in blocks(text) {
        lines.push(String::new());
        match block {
            Block::Title(title) => lines.push(title.to_owned()),
            Block::Verbatim(shown) => lines.extend(shown.iter().map(|line| format!("           {line}"))),
            Block::Paragraph(text) => {
                let text = text.replace('`', "").replacen(":: ", ": ", 1);
                let mut line = "      ".to_owned();
                for word in text.split_whitespace() {
                    if line.chars().count() + word.chars().count() >= 80 {
                        lines.push(std::mem::replace(&mut line, "      ".to_owned()));
                    }
                    line = format!("{line} {word}");
                }
                lines.push(line);
            }
        }
    }
    lines.join("\n") + "\n"
}

#[derive(Debug, PartialEq, Eq)]
enum Block<'a> {
    Title(&'a str),
    /// Lines without their indentation. Neither the first nor the last line is empty.
    Verbatim(Vec<&'a str>),
    /// Lines joined by spaces.
    Paragraph(String),
}

fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    // Whether the last line was empty, so that the next line starts a new block.
    let mut apart = true;
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("# ") {
            blocks.push(Block::Title(title));
            apart = true;
        } else if line.is_empty() {
            apart = true;
        } else if let Some(line) = line.strip_prefix(INDENT) {
            match blocks.last_mut() {
                Some(Block::Verbatim(lines)) => {
                    // An empty line between two indented lines belongs to the verbatim block.
                    lines.extend(apart.then_some(""));
                    lines.push(line);
                }
                _ => blocks.push(Block::Verbatim(vec![line])),
            }
            apart = false;
        } else {
            match blocks.last_mut() {
                Some(Block::Paragraph(paragraph)) if !apart => {
                    paragraph.push(' ');
                    paragraph.push_str(line);
                }
                _ => blocks.push(Block::Paragraph(line.to_owned())),
            }
            apart = false;
        }
    }
    blocks
}

fn verbatim(roff: &mut Roff, lines: &[&str]) {
    roff.control("PP", []).control("RS", ["4"]).control("EX", []);
    for line in lines {
        roff.text([roman(*line)]);
    }
    roff.control("EE", []).control("RE", []);
}

fn paragraph(roff: &mut Roff, text: &str) {
    match text.split_once(":: ") {
        Some((term, meaning)) => roff.control("TP", []).text(inlines(term)).text(inlines(meaning)),
        None => roff.control("PP", []).text(inlines(text)),
    };
}

/// Splits a line into its parts; words to type become bold, and values italic.
fn inlines(text: &str) -> Vec<Inline> {
    let parts = text.split('`').enumerate();
    parts.flat_map(|(at, part)| if at % 2 == 0 { values(part) } else { vec![bold(part)] }).collect()
}

/// Splits a text without words to type. An asterisk beside anything but a value stands for itself.
fn values(text: &str) -> Vec<Inline> {
    let mut inlines = Vec::new();
    let (mut plain, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once('*') {
        plain += before;
        match after.split_once('*').filter(|(word, _)| is_value(word)) {
            Some((word, behind)) => {
                inlines.extend([roman(std::mem::take(&mut plain)), italic(word)]);
                rest = behind;
            }
            None => {
                plain.push('*');
                rest = after;
            }
        }
    }
    inlines.push(roman(plain + rest));
    inlines
}

fn is_value(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::{Block, blocks, render};

    #[test]
    fn text_is_split_into_blocks() {
        let text = "# ONE\n\nfirst\nline\n\nsecond\n\n    a\n      b\n\n    c\n\nlast\n";
        let paragraph = |text: &str| Block::Paragraph(text.to_owned());
        let verbatim = Block::Verbatim(vec!["a", "  b", "", "c"]);
        assert_eq!(
            blocks(text),
            [Block::Title("ONE"), paragraph("first line"), paragraph("second"), verbatim, paragraph("last")]
        );
    }

    #[test]
    fn values_are_italic_and_other_asterisks_stay() {
        let roff = render("`--for`[`=`*DUR*]:: volatile-* or `PSUBSCRIBE *`, *N* times\n").to_roff();
        let expected =
            ".TP\n\\fB\\-\\-for\\fR[\\fB=\\fR\\fIDUR\\fR]\nvolatile\\-* or \\fBPSUBSCRIBE *\\fR, \\fIN\\fR times\n";
        assert_eq!(roff, expected);
    }

    #[test]
    fn blocks_become_roff_with_special_characters_escaped() {
        let roff = render("# A TITLE\n\n.dot `-n` \\e\n\n`-x`:: what it does\n\n    'quote\n").to_roff();
        let expected = ".SH \"A TITLE\"\n.PP\n\\&.dot \\fB\\-n\\fR \\\\e\n.TP\n\\fB\\-x\\fR\nwhat it does\n\
                        .PP\n.RS 4\n.EX\n\\&'quote\n.EE\n.RE\n";
        assert_eq!(roff, expected);
    }
}
