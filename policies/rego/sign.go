package rego

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/util"
)

// SignaturesFile is the name of the file with a bundle's signature.
const SignaturesFile = ".signatures.json"

// Sign returns the signatures file for a bundle's directory, under an Ed25519 private key in PEM that servers know as id.
func Sign(dir fs.FS, key []byte, id string) ([]byte, error) {
	private, err := signingKey(key)
	if err != nil {
		return nil, err
	}
	hasher, err := bundle.NewSignatureHasher(bundle.SHA256)
	if err != nil {
		return nil, err
	}
	var files []bundle.FileInfo
	err = walkBundle(dir, func(name string) error {
		if isTest(name) || name == SignaturesFile {
			return nil
		}
		raw, err := readBounded(dir, name)
		if err != nil {
			return err
		}
		var content any = raw
		if bundle.IsStructuredDoc(path.Base(name)) { // signed by what it says, however it is laid out
			if err := util.Unmarshal(raw, &content); err != nil {
				return fmt.Errorf("read %s: %w", name, plain(err))
			}
		}
		sum, err := hasher.HashFile(content)
		if err != nil {
			return err
		}
		files = append(files, bundle.NewFile(name, hex.EncodeToString(sum), string(bundle.SHA256)))
		return nil
	})
	if err != nil {
		return nil, err
	}
	text, err := tokenText(map[string]string{"alg": "EdDSA", "kid": id}, map[string]any{"files": files})
	if err != nil {
		return nil, err
	}
	token := text + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(private, []byte(text)))
	return json.Marshal(map[string][]string{"signatures": {token}})
}

// tokenText is what a signature is made over: the parts of a JSON Web Token (RFC 7519).
func tokenText(head, body any) (string, error) {
	h, err := json.Marshal(head)
	if err != nil {
		return "", err
	}
	b, err := json.Marshal(body)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(h) + "." + base64.RawURLEncoding.EncodeToString(b), nil
}

func signingKey(raw []byte) (ed25519.PrivateKey, error) {
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
		return nil, fmt.Errorf("a key of type %T is not taken here: use Ed25519, or sign with 'opa sign'", key)
	}
	return private, nil
}
