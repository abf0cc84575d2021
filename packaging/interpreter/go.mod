// Pins the interpreter of the one-file programs: a relocatable CPython, as files in a Go module, so that Go's checksum
// database vouches for it. Nothing of it is compiled.
module interpreter

go 1.26

require github.com/kluctl/go-embed-python v0.0.0-3.14.6-20260610-1
