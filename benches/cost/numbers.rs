//! Formats numbers for people.

/// Formats a number with three significant digits and a comma between thousands: `1,234`, `56.7`,
/// `0.0312`.
pub(crate) fn figure(value: f64) -> String {
    let places = match value.abs() {
        // Counts are shown exactly.
        size if size >= 1.0 && size.fract() == 0.0 => 0,
        0.0 => 0,
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.9995 => 2,
        _ => 3,
    };
    let text = format!("{value:.places$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}
