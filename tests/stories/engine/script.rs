//! The text of a story: its scenes, their steps, and the expected text after each step.

use std::fs;
use std::ops::Range;
use std::path::Path;

use super::step::Step;

/// The line between a step and its expected text.
const RULE: &str = "----";

pub(super) struct Story {
    pub(super) scenes: Vec<Scene>,
    lines: Vec<String>,
}

/// A sequence of steps that starts with an empty table.
pub(super) struct Scene {
    pub(super) title: String,
    /// Whether the command line cannot express the scene.
    pub(super) model_only: bool,
    /// Whether only the model and the embedded store, without its command line, play the scene.
    pub(super) store_only: bool,
    pub(super) steps: Vec<Scripted>,
}

/// A step and its expected text.
pub(super) struct Scripted {
    /// The line number, from 1.
    pub(super) line: usize,
    pub(super) text: String,
    pub(super) step: Step,
    /// The reply and the table after the step, without a final line feed.
    pub(super) expected: String,
    /// The line numbers of `expected`, from 0.
    block: Range<usize>,
}

impl Story {
    /// Reads a story.
    ///
    /// # Panics
    /// If the file cannot be read or is not a valid story. The message names the line.
    pub(super) fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        match scenes(&lines) {
            Ok(scenes) => Self { scenes, lines },
            Err((line, error)) => panic!("{}:{line}: {error}", path.display()),
        }
    }

    /// The text of the story with these blocks in place of the expected texts.
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

/// The scenes of a story, or a line number and the error in that line.
fn scenes(lines: &[String]) -> Result<Vec<Scene>, (usize, String)> {
    let mut scenes: Vec<Scene> = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at].as_str();
        let error = |message: &str| (at + 1, message.to_owned());
        if let Some(title) = line.strip_prefix("== ") {
            scenes.push(Scene { title: title.to_owned(), model_only: false, store_only: false, steps: Vec::new() });
        } else if !line.is_empty() && !line.starts_with('#') {
            let scene = scenes.last_mut().ok_or_else(|| error("a story starts with '== ' and the title of a scene"))?;
            if line.starts_with("model only: ") && scene.steps.is_empty() {
                scene.model_only = true;
            } else if line.starts_with("store only: ") && scene.steps.is_empty() {
                scene.store_only = true;
            } else {
                let scripted = scripted(lines, at).map_err(|message| error(&message))?;
                at = scripted.block.end;
                scene.steps.push(scripted);
                continue;
            }
        }
        at += 1;
    }
    match scenes.iter().find(|scene| scene.steps.is_empty()) {
        Some(empty) => Err((lines.len(), format!("the scene '{}' has no steps", empty.title))),
        None => Ok(scenes),
    }
}

/// The step in line `at` with its expected text.
fn scripted(lines: &[String], at: usize) -> Result<Scripted, String> {
    if lines.get(at + 1).map(String::as_str) != Some(RULE) {
        return Err(format!("a step needs a line {RULE} after it"));
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

    /// A story of two scenes, whose first step expects `first`.
    fn story(first: &str) -> Story {
        let text = format!(
            "# Prose.\n\n== One\n\nA read tree\n----\n{first}\n\n# More.\nA releases\n----\ndone\nfree\n\n\
             == Two\nmodel only: so it is\n\nB cancels\n----\ndone\n"
        );
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        Story { scenes: scenes(&lines).unwrap_or_else(|error| panic!("{error:?}")), lines }
    }

    #[test]
    fn story_is_parsed_into_scenes_and_steps() {
        let story = story("granted\ntree: A read t1");
        let steps = |scene: &Scene| scene.steps.iter().map(|step| step.text.clone()).collect::<Vec<_>>();
        assert_eq!(
            story.scenes.iter().map(steps).collect::<Vec<_>>(),
            [vec!["A read tree", "A releases"], vec!["B cancels"]]
        );
        assert_eq!(story.scenes.iter().map(|scene| scene.model_only).collect::<Vec<_>>(), [false, true]);
        assert_eq!(story.scenes[0].steps[0].expected, "granted\ntree: A read t1");
    }

    #[test]
    fn rewrite_changes_only_the_expected_text() {
        let blocks = |first: &str| vec![vec![first.to_owned(), "done\nfree".to_owned()], vec!["done".to_owned()]];
        let text = story("busy").lines.join("\n") + "\n";
        assert_eq!(story("busy").rewritten(&blocks("busy")), text);
        assert_eq!(story("waiting\nfree").rewritten(&blocks("busy")), text);
    }

    #[test]
    fn invalid_story_is_reported_with_its_line() {
        let error = |text: &str| scenes(&text.lines().map(str::to_owned).collect::<Vec<_>>()).err();
        let expected = |line, message: &str| Some((line, message.to_owned()));
        assert_eq!(error("A read tree\n----"), expected(1, "a story starts with '== ' and the title of a scene"));
        assert_eq!(error("== One\n\nA read tree\ngranted"), expected(3, "a step needs a line ---- after it"));
        assert_eq!(error("== One\n\nA vanishes\n----\ndone"), expected(3, "'vanishes' is neither a step nor a claim"));
        assert_eq!(error("== One\n== Two\nA is killed\n----\ndone"), expected(5, "the scene 'One' has no steps"));
    }
}
