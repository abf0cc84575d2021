"""OperatingSystemConfig semantics: decode, validate, merge, diff, plan; and the journal, the only part that does I/O."""
