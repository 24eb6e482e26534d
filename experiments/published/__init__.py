"""Tables and figures of five sources as experiments: SOURCE/source.yaml, SOURCE/TABLE.yaml, measurements."""
