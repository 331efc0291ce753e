// Package signature signs modules of policies, and says who signed one.
//
// A signature is made with an Ed25519 key (RFC 8032) over the SHA-256 of the module, and travels beside it as a small text. The package reads keys as PEM files and owns the
// text's form; it keeps nothing. All of it may be used from any number of goroutines.
package signature

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"strings"
)

const (
	// MaxBytes bounds the text of a signature.
	MaxBytes = 1024
	// maxKey bounds the file of a key.
	maxKey = 64 << 10
	// heading is the first line of the text, and with the digest what is signed: a signature is good for nothing else.
	heading = "paceline policy signature 1"
)

var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// Sign returns the signature of a module, under an Ed25519 private key in PEM that servers know as id.
func Sign(module, key []byte, id string) ([]byte, error) {
	if !idPattern.MatchString(id) {
		return nil, fmt.Errorf("%q cannot name a key: use letters, digits, dots, dashes and underscores, 63 at most", id)
	}
	private, err := PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%s\n%s %s\n", heading, id, base64.StdEncoding.EncodeToString(ed25519.Sign(private, signed(sha256.Sum256(module))))), nil
}

func signed(digest [32]byte) []byte { return append([]byte(heading+"\n"), digest[:]...) }

// PrivateKey reads an Ed25519 private key in PEM.
func PrivateKey(raw []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(raw)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, errors.New("the key must be a PEM block of type PRIVATE KEY, as 'openssl genpkey -algorithm ed25519' writes it")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("the private key cannot be read") // what is wrong with it is nobody's business
	}
	private, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("a key of type %T is not taken here: use Ed25519", key)
	}
	return private, nil
}

// Keys are who may sign modules, by id.
type Keys map[string]ed25519.PublicKey

// ReadKeys reads a directory of public keys: ID.pem is the key that signatures name as ID.
func ReadKeys(dir fs.FS) (Keys, error) {
	entries, err := fs.ReadDir(dir, ".")
	if err != nil {
		return nil, err
	}
	keys := Keys{}
	for _, entry := range entries {
		id, isKey := strings.CutSuffix(entry.Name(), ".pem")
		if !isKey || !idPattern.MatchString(id) || entry.IsDir() {
			continue
		}
		if keys[id], err = readKey(dir, entry.Name()); err != nil {
			return nil, fmt.Errorf("%s: %w", entry.Name(), err)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("there is no key: put public keys there as ID.pem, or leave the setting out to take modules without signatures")
	}
	return keys, nil
}

func readKey(dir fs.FS, name string) (ed25519.PublicKey, error) {
	file, err := dir.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it is only read
	raw, err := io.ReadAll(io.LimitReader(file, maxKey))
	if err != nil {
		return nil, err
	}
	block, rest := pem.Decode(raw)
	if block == nil || block.Type != "PUBLIC KEY" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("it must hold one PEM block of type PUBLIC KEY, as 'openssl pkey -pubout' writes it")
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	public, ok := key.(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("a key of type %T signs no policies: use Ed25519", key)
	}
	return public, nil
}

// Verify returns the id of the key that made a signature of a module with that digest.
func (k Keys) Verify(digest [32]byte, text []byte) (string, error) {
	if len(text) == 0 {
		return "", errors.New("it is not signed, and this server wants a signature: make one with 'paceline policy sign'")
	}
	first, rest, _ := strings.Cut(string(text), "\n")
	line, more, _ := strings.Cut(rest, "\n")
	id, encoded, ok := strings.Cut(line, " ")
	if len(text) > MaxBytes || first != heading || !ok || strings.TrimSpace(more) != "" {
		return "", errors.New("that is no signature of a policy")
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(encoded)
	public, known := k[id]
	switch {
	case err != nil:
		return "", errors.New("that is no signature of a policy")
	case !known:
		return "", fmt.Errorf("it is signed with key %.63q, which this server does not trust", id)
	case !ed25519.Verify(public, signed(digest), raw):
		return "", fmt.Errorf("the signature with key %s is not of this module: sign it again", id)
	}
	return id, nil
}
