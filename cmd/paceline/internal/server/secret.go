package server

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/paceline-sched/paceline/core/cluster"
)

func wrongFile(field string, err error) error {
	return &cluster.FieldError{Field: field, Message: err.Error(), Hint: "the path is one of the server's machine, and the server must be able to read the file"}
}

// maxSecretBytes bounds a secret.
const maxSecretBytes = 4096

// readSecret reads a secret where its reference says it is. Files count below the directory of secrets alone, so that who may add clusters cannot have the
// server send any of its machine's files to whom he likes.
func (c *Config) readSecret(ref cluster.Secret) (string, error) {
	if ref.Env != "" {
		secret, ok := os.LookupEnv(ref.Env)
		if !ok || secret == "" {
			return "", &cluster.FieldError{Field: "mesos.secret_env", Message: "the server's environment has no variable " + ref.Env, Hint: "start the server with it"}
		}
		return secret, nil
	}
	raw, err := c.secretFile(ref.File, maxSecretBytes+int64(len("\r\n")))
	if err != nil {
		return "", wrongSecret("mesos.secret_file", err)
	}
	secret := strings.TrimRight(string(raw), "\r\n")
	if secret == "" || len(secret) > maxSecretBytes || strings.ContainsAny(secret, "\r\n\x00") {
		return "", wrongSecret("mesos.secret_file", fmt.Errorf("%s holds no secret: it is one line of up to %d bytes", ref.File, maxSecretBytes))
	}
	return secret, nil
}

// secretFile reads a file below the directory of secrets. One that is longer than bound is refused.
func (c *Config) secretFile(path string, bound int64) ([]byte, error) {
	name, err := below(c.SecretsDir, path)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(c.SecretsDir)
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // it is only read
	about, err := root.Stat(name)
	if err == nil && !about.Mode().IsRegular() {
		err = fmt.Errorf("%s is no plain file", path)
	}
	if err != nil {
		return nil, fmt.Errorf("below the server's directory of secrets, %s: %w", c.SecretsDir, err)
	}
	file, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it is only read
	raw, err := io.ReadAll(io.LimitReader(file, bound+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(raw)) > bound:
		return nil, fmt.Errorf("%s is longer than %d bytes", path, bound)
	}
	return raw, nil
}

func wrongSecret(field string, err error) error {
	return &cluster.FieldError{
		Field: field, Message: err.Error(),
		Hint: "put the file below the directory that the server's --secrets-dir names, by default secrets in its data directory, where the server may read it",
	}
}

// below returns a path as it is below a directory.
func below(dir, path string) (string, error) {
	if !filepath.IsAbs(path) {
		return path, nil
	}
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	rest, ok := strings.CutPrefix(filepath.Clean(path), absolute+string(filepath.Separator))
	if !ok {
		return "", errors.New("the file " + path + " is not below " + absolute)
	}
	return rest, nil
}
