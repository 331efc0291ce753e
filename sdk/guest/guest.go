// Package guest is what policies in languages other than Go are written against: one file or two for each language, with the layouts of
// docs/policy-abi.md and placing by cost.
//
// It owns those files and nothing that runs here: `paceline policy build` puts them beside a policy's source, and authors may copy them. For Go there is sdk/policy.
package guest

import (
	"embed"
	"io/fs"
)

//go:embed c rust assemblyscript
var files embed.FS

// Languages are the names that Files knows.
func Languages() []string { return []string{"c", "rust", "assemblyscript"} }

// Files are the files of a language, by their names. It panics for a language that is none of Languages.
func Files(language string) fs.FS {
	sub, err := fs.Sub(files, language)
	if err != nil {
		panic("a folder of this package: " + err.Error())
	}
	return sub
}
