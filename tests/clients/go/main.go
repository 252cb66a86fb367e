// The program that tests/clients/tests/client_go.rs runs: client-go against `hawser apiserver`, used
// as controllers use it. Each check has a server of its own.
package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// env is what a check works with.
type env struct {
	ctx context.Context
	// config asks for JSON, as dynamic clients need it.
	config *rest.Config
	// client asks for protobuf, as Kubernetes' own controllers do.
	client *kubernetes.Clientset
	wire   *wire
}

var checks = map[string]func(env){
	"apply":     apply,
	"discovery": discover,
	"dynamic":   dynamicClients,
	"election":  election,
	"informers": sharedInformers,
	"pages":     pages,
	"restart":   restart,
	"typed":     typed,
	"watches":   watches,
}

func main() {
	if len(os.Args) != 2 || checks[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: client-go CHECK, with KUBECONFIG set")
		os.Exit(2)
	}
	config := must(clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG")))
	config.QPS, config.Burst = 1000, 1000
	seen := &wire{}
	config.Wrap(seen.wrap)
	protobuf := rest.CopyConfig(config)
	protobuf.ContentType = runtime.ContentTypeProtobuf
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	checks[os.Args[1]](env{ctx, config, must(kubernetes.NewForConfig(protobuf)), seen})
	fmt.Println("passed")
}

// must ends the program if there is an error.
func must[T any](value T, err error) T {
	try(err)
	return value
}

// try ends the program if there is an error; the trace says where.
func try(err error) {
	if err != nil {
		panic(err)
	}
}

// expect ends the program if something is not as it should be.
func expect(holds bool, format string, args ...any) {
	if !holds {
		panic(fmt.Sprintf(format, args...))
	}
}

// refused ends the program unless an error is of the wanted kind.
func refused(is func(error) bool, err error) {
	expect(err != nil && is(err), "another error was wanted than: %v", err)
}

// eventually waits for something that must come; the context of the check is the limit.
func (e env) eventually(what string, holds func() bool) {
	for !holds() {
		select {
		case <-e.ctx.Done():
			panic("in vain awaited: " + what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// ask tells the test that runs this program something, and waits until it was done.
func ask(what string) {
	fmt.Println(what)
	must(bufio.NewReader(os.Stdin).ReadString('\n'))
}

// wire remembers what went over the wire.
type wire struct {
	sync.Mutex
	requests []string
	types    map[string]int
}

func (w *wire) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(request *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		w.Lock()
		defer w.Unlock()
		w.requests = append(w.requests, request.Method+" "+request.URL.RequestURI())
		if err == nil {
			if w.types == nil {
				w.types = map[string]int{}
			}
			kind, _, _ := strings.Cut(response.Header.Get("Content-Type"), ";")
			w.types[kind]++
		}
		return response, err
	})
}

// count says how many requests had all of these in them.
func (w *wire) count(parts ...string) int {
	w.Lock()
	defer w.Unlock()
	n := 0
	for _, request := range w.requests {
		all := true
		for _, part := range parts {
			all = all && strings.Contains(request, part)
		}
		if all {
			n++
		}
	}
	return n
}

type roundTrip func(*http.Request) (*http.Response, error)

func (r roundTrip) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// Options that are nearly always the same.
var (
	creating = metav1.CreateOptions{}
	updating = metav1.UpdateOptions{}
	getting  = metav1.GetOptions{}
	patching = metav1.PatchOptions{}
	now      = metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
)
