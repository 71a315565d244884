//! Rewrites Lua: writes the text of functions in place of calls, and the values of constants in
//! place of names.

use std::collections::BTreeMap;

/// A function of Lua whose text a fast path may have in place of a call.
pub(super) struct Function<'l> {
    /// The call, with the names of the parameters as arguments.
    call: &'l str,
    body: Vec<&'l str>,
}

/// The functions in a text, apart from those within others.
pub(super) fn functions(lua: &str) -> Vec<Function<'_>> {
    let mut found = Vec::new();
    let mut lines = lua.lines();
    while let Some(line) = lines.next() {
        if let Some(call) = line.strip_prefix("local function ") {
            let body = lines.by_ref().take_while(|line| *line != "end").map(str::trim_start);
            let body: Vec<_> = body.filter(|line| !line.starts_with("--")).collect();
            let (_, parameters) = call.trim_end_matches(')').split_once('(').expect("a function has parameters");
            for (name, line) in parameters.split(", ").flat_map(|name| body.iter().map(move |line| (name, line))) {
                let is_assigned = |mark| line.starts_with(&format!("{name}{mark}"));
                assert!(!is_assigned(" =") && !is_assigned(","), "{call} assigns a parameter: {line}");
            }
            found.push(Function { call, body });
        }
    }
    found
}

/// Writes the text of functions in place of the calls whose arguments have the names of the
/// parameters. A function that is one return of an expression takes the place of its call in an
/// expression, without parentheses. Any other takes the place of a line. So a function must not
/// assign its parameters, which may be variables of the fast path.
pub(super) fn inlined(lua: &str, functions: &[Function]) -> String {
    let mut written = String::new();
    for line in lua.lines().map(str::trim_start).filter(|line| !line.starts_with("--")) {
        let procedure = functions.iter().find(|function| line == function.call);
        if let Some(Function { body, .. }) = procedure {
            written += &format!("do\n{}end\n", inlined(&body.join("\n"), functions));
            continue;
        }
        let call = |line: &str| functions.iter().find(|function| line.contains(function.call));
        let mut line = line.to_owned();
        while let Some(Function { call, body }) = call(&line) {
            let body = body.join("\n");
            let value = body.strip_prefix("return ").unwrap_or_else(|| panic!("{call} is not one return: {line}"));
            line = line.replace(call, value);
        }
        let name = |function: &Function| function.call.split_inclusive('(').next().map(str::to_owned);
        let other = functions.iter().filter_map(name).find(|name| line.contains(name.as_str()));
        assert_eq!(other, None, "the arguments have other names than the parameters: {line}");
        written += &(line + "\n");
    }
    written
}

/// Removes indentation, empty lines and comment lines from a script. They would be a third of the
/// bytes that are sent.
pub(super) fn stripped(lua: &str) -> String {
    code_lines(lua).fold(String::new(), |script, line| script + line + "\n")
}

fn code_lines(lua: &str) -> impl Iterator<Item = &str> {
    lua.lines().map(str::trim_start).filter(|line| !line.is_empty() && !line.starts_with("--"))
}

/// The names and values of constants, which are defined by lines such as `local ONE, TWO = 1, 2`.
pub(super) fn constants(lua: &str) -> BTreeMap<&str, &str> {
    code_lines(lua)
        .flat_map(|line| {
            let definition = line.strip_prefix("local ").and_then(|line| line.split_once(" = "));
            let (names, values) = definition.unwrap_or_else(|| panic!("not a definition of constants: {line}"));
            let (names, values): (Vec<_>, Vec<_>) = (names.split(", ").collect(), values.split(", ").collect());
            assert_eq!(names.len(), values.len(), "{line}");
            names.into_iter().zip(values)
        })
        .fold(BTreeMap::new(), |mut known, (name, value)| {
            assert_eq!(known.insert(name, value), None, "{name} has two values");
            known
        })
}

/// Writes the values of constants in place of their names, except within quotes.
pub(super) fn with_values(lua: &str, constants: &BTreeMap<&str, &str>) -> String {
    let (mut written, mut rest, mut is_quoted) = (String::new(), lua, false);
    while let Some(first) = rest.chars().next() {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len()).max(first.len_utf8());
        let (word, after) = rest.split_at(length);
        is_quoted ^= word == "'";
        written += if is_quoted { word } else { constants.get(word).unwrap_or(&word) };
        rest = after;
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    const FUNCTIONS: &str = "-- Adds.\nlocal function add(x, y)\n  return (x + y)\nend\n\n\
                             local function note(x)\n  -- Why.\n  log[#log + 1] = x\nend\n";

    fn written(lua: &str) -> String {
        inlined(lua, &functions(FUNCTIONS))
    }

    #[test]
    fn functions_are_written_in_place_of_their_calls() {
        assert_eq!(written("  note(x)\n"), "do\nlog[#log + 1] = x\nend\n");
        assert_eq!(written("local z = add(x, y) * 2\n"), "local z = (x + y) * 2\n");
        let outer = "local function both(x, y)\n  note(x)\n  z = add(x, y)\nend\n";
        let all = FUNCTIONS.to_owned() + outer;
        let expected = "do\ndo\nlog[#log + 1] = x\nend\nz = (x + y)\nend\n";
        assert_eq!(inlined("both(x, y)\n", &functions(&all)), expected);
    }

    #[test]
    #[should_panic(expected = "the arguments have other names than the parameters: note(z)")]
    fn call_with_other_arguments_is_refused() {
        written("note(z)\n");
    }

    #[test]
    #[should_panic(expected = "note(x) is not one return")]
    fn procedure_in_an_expression_is_refused() {
        written("local z = note(x)\n");
    }

    #[test]
    #[should_panic(expected = "add(x, y) assigns a parameter: y = 1")]
    fn function_that_assigns_a_parameter_is_refused() {
        functions("local function add(x, y)\n  y = 1\n  return x + y\nend\n");
    }

    #[test]
    fn constants_are_replaced_outside_quotes_only() {
        let constants = constants("-- Two.\nlocal ONE, TWO = 1, '2'\n");
        assert_eq!(with_values("f(ONE, TWO, 'ONE', ONES)\n", &constants), "f(1, '2', 'ONE', ONES)\n");
    }

    #[test]
    #[should_panic(expected = "ONE has two values")]
    fn constant_with_two_values_is_refused() {
        constants("local ONE = 1\nlocal ONE = 2\n");
    }

    #[test]
    fn indentation_and_comments_are_stripped() {
        assert_eq!(stripped("-- a\n\n  b()\n    -- c\nd()\n"), "b()\nd()\n");
    }
}
