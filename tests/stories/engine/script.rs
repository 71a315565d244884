//! The text of a story: scenes, the steps in them and what is expected after each.

use std::fs;
use std::ops::Range;
use std::path::Path;

use super::step::Step;

/// What stands between a step and what is expected.
const RULE: &str = "----";

/// A story file.
pub(super) struct Story {
    /// The scenes, in order.
    pub(super) scenes: Vec<Scene>,
    lines: Vec<String>,
}

/// A scene: what happens from an empty table on.
pub(super) struct Scene {
    /// What it shows.
    pub(super) title: String,
    /// Whether the command line has no words for it.
    pub(super) model_only: bool,
    /// What happens, in order.
    pub(super) steps: Vec<Scripted>,
}

/// A step and what is expected of it.
pub(super) struct Scripted {
    /// The number of its line, from 1.
    pub(super) line: usize,
    /// The line.
    pub(super) text: String,
    /// What it says.
    pub(super) step: Step,
    /// The answer and the table after it: lines, without a line feed at the end.
    pub(super) expected: String,
    /// The lines of `expected`, from 0.
    block: Range<usize>,
}

impl Story {
    /// Reads a story.
    ///
    /// # Panics
    /// Where the file can't be read or is no story: the message says which line it is.
    pub(super) fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        match scenes(&lines) {
            Ok(scenes) => Self { scenes, lines },
            Err((line, what)) => panic!("{}:{line}: {what}", path.display()),
        }
    }

    /// The text of the story with these blocks, scene by scene and step by step, in place of what it expected.
    pub(super) fn rewritten(&self, blocks: &[Vec<String>]) -> String {
        let steps = self.scenes.iter().flat_map(|scene| &scene.steps);
        let mut text = String::new();
        let mut next = 0;
        for (scripted, block) in steps.zip(blocks.iter().flatten()) {
            self.lines[next..scripted.block.start].iter().for_each(|line| text.extend([line, "\n"]));
            text.extend([block, "\n"]);
            next = scripted.block.end;
        }
        self.lines[next..].iter().for_each(|line| text.extend([line, "\n"]));
        text
    }
}

/// The scenes of a story, or the number of a line and what is wrong with it.
fn scenes(lines: &[String]) -> Result<Vec<Scene>, (usize, String)> {
    let mut scenes: Vec<Scene> = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at].as_str();
        let wrong = |what: &str| (at + 1, what.to_owned());
        if let Some(title) = line.strip_prefix("== ") {
            scenes.push(Scene { title: title.to_owned(), model_only: false, steps: Vec::new() });
        } else if !line.is_empty() && !line.starts_with('#') {
            let scene = scenes.last_mut().ok_or_else(|| wrong("a story starts with '== ' and the title of a scene"))?;
            if line.starts_with("model only: ") && scene.steps.is_empty() {
                scene.model_only = true;
            } else {
                let scripted = scripted(lines, at).map_err(|what| wrong(&what))?;
                at = scripted.block.end;
                scene.steps.push(scripted);
                continue;
            }
        }
        at += 1;
    }
    match scenes.iter().find(|scene| scene.steps.is_empty()) {
        Some(empty) => Err((lines.len(), format!("nothing happens in '{}'", empty.title))),
        None => Ok(scenes),
    }
}

/// The step in the line `at`, with the block that follows.
fn scripted(lines: &[String], at: usize) -> Result<Scripted, String> {
    if lines.get(at + 1).map(String::as_str) != Some(RULE) {
        return Err(format!("a line {RULE} follows a step"));
    }
    let start = at + 2;
    let length = lines[start..].iter().position(String::is_empty).unwrap_or(lines.len() - start);
    let block = start..start + length;
    let step = lines[at].parse()?;
    Ok(Scripted { line: at + 1, text: lines[at].clone(), step, expected: lines[block.clone()].join("\n"), block })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A story of two scenes; the first step of it expects `first`.
    fn told(first: &str) -> Story {
        let text = format!(
            "# Prose.\n\n== One\n\nA read tree\n----\n{first}\n\n# More.\nA releases\n----\ndone\nfree\n\n\
             == Two\nmodel only: so it is\n\nB gives up\n----\ndone\n"
        );
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        Story { scenes: scenes(&lines).unwrap_or_else(|wrong| panic!("{wrong:?}")), lines }
    }

    #[test]
    fn scenes_have_their_steps() {
        let story = told("granted\ntree: A read t1");
        let steps = |scene: &Scene| scene.steps.iter().map(|step| step.text.clone()).collect::<Vec<_>>();
        assert_eq!(
            story.scenes.iter().map(steps).collect::<Vec<_>>(),
            [vec!["A read tree", "A releases"], vec!["B gives up"]]
        );
        assert_eq!(story.scenes.iter().map(|scene| scene.model_only).collect::<Vec<_>>(), [false, true]);
        assert_eq!(story.scenes[0].steps[0].expected, "granted\ntree: A read t1");
    }

    #[test]
    fn only_what_is_expected_is_rewritten() {
        let blocks = |first: &str| vec![vec![first.to_owned(), "done\nfree".to_owned()], vec!["done".to_owned()]];
        let text = told("busy").lines.join("\n") + "\n";
        assert_eq!(told("busy").rewritten(&blocks("busy")), text);
        assert_eq!(told("waiting\nfree").rewritten(&blocks("busy")), text);
    }

    #[test]
    fn what_is_no_story_is_told_with_its_line() {
        let wrong = |text: &str| scenes(&text.lines().map(str::to_owned).collect::<Vec<_>>()).err();
        let told = |line, what: &str| Some((line, what.to_owned()));
        assert_eq!(wrong("A read tree\n----"), told(1, "a story starts with '== ' and the title of a scene"));
        assert_eq!(wrong("== One\n\nA read tree\ngranted"), told(3, "a line ---- follows a step"));
        assert_eq!(wrong("== One\n\nA vanishes\n----\ndone"), told(3, "'vanishes' is neither a step nor a claim"));
        assert_eq!(wrong("== One\n== Two\nA dies\n----\ndone"), told(5, "nothing happens in 'One'"));
    }
}
