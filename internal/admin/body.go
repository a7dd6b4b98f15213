package admin

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/weir-rl/weir/internal/door/answer"
)

// decodeBody reads the one JSON object of a body into v. Error messages show example. They name the
// members, and not Go's types. The error is an answer.FieldError or an http.MaxBytesError.
func decodeBody(r io.Reader, v any, example string) error {
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil {
		if _, end := d.Token(); end == io.EOF {
			return nil
		}
		err = errors.New("it goes on after the object")
	}
	if f, ok := errors.AsType[*answer.FieldError](err); ok {
		return f
	}
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return large
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && e.Field != "" {
		return &answer.FieldError{Field: e.Field,
			Message: "must be " + kindOf(e.Type) + ", not " + valueOf(e.Value) + "; the body is such as " + example}
	}
	text := strings.TrimPrefix(err.Error(), "json: ")
	if name, ok := strings.CutPrefix(text, "unknown field "); ok {
		if plain, err := strconv.Unquote(name); err == nil {
			name = plain
		}
		return &answer.FieldError{Field: answer.Printable(name),
			Message: "is not known here; the body is such as " + example}
	}
	switch e, ok := errors.AsType[*json.UnmarshalTypeError](err); {
	case ok:
		text = "it is " + valueOf(e.Value)
	case err == io.EOF:
		text = "it is empty"
	case err == io.ErrUnexpectedEOF:
		text = "it ends too early"
	}
	return &answer.FieldError{Field: "body", Message: "must be a JSON object such as " + example + ": " + text}
}

// kindOf returns JSON's name for a type.
func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "an object"
	}
	return "an integer"
}

// valueOf names a value as json.UnmarshalTypeError does: "number", or "number 1.5".
func valueOf(value string) string {
	kind, text, _ := strings.Cut(value, " ")
	switch kind {
	case "object":
		kind = "an object"
	case "array":
		kind = "a list"
	case "bool":
		kind = "true or false"
	default:
		kind = "a " + kind
	}
	if text != "" {
		return text
	}
	return kind
}
