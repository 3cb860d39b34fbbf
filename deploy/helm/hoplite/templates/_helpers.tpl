{{- define "hoplite.labels" -}}
app.kubernetes.io/name: hoplite
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "hoplite.image" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end -}}

{{- define "hoplite.directories" -}}
{{- $release := .Release.Name -}}
{{- $namespace := .Release.Namespace -}}
{{- $port := .Values.directory.port -}}
{{- range $index := until (int .Values.directory.replicas) -}}
{{- if $index }},{{ end -}}
{{ $release }}-directory-{{ $index }}.{{ $release }}-directory.{{ $namespace }}.svc:{{ $port }}
{{- end -}}
{{- end -}}

{{- define "hoplite.authArgs" -}}
{{- if .Values.auth.tokenSecret }}
- --token-file=/credentials/token
{{- end }}
{{- if .Values.auth.tlsSecret }}
- --tls-cert=/credentials/tls.crt
- --tls-key=/credentials/tls.key
- --tls-ca=/credentials/ca.crt
- --tls-name={{ .Values.auth.tlsName }}
{{- end }}
{{- if .Values.auth.insecure }}
- --insecure
{{- end }}
{{- if not (or .Values.auth.tokenSecret .Values.auth.tlsSecret .Values.auth.insecure) }}
{{- fail "choose who may connect: auth.tokenSecret, auth.tlsSecret, or auth.insecure=true" }}
{{- end }}
{{- end -}}

{{- /* The kubelet renews these files, and daemons read certificates again. */ -}}
{{- define "hoplite.credentialsVolume" -}}
{{- if or .Values.auth.tokenSecret .Values.auth.tlsSecret }}
- name: credentials
  projected:
    defaultMode: 0440
    sources:
      {{- with .Values.auth.tokenSecret }}
      - secret:
          name: {{ . }}
          items: [{key: token, path: token}]
      {{- end }}
      {{- with .Values.auth.tlsSecret }}
      - secret:
          name: {{ . }}
          items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}, {key: ca.crt, path: ca.crt}]
      {{- end }}
{{- end }}
{{- end -}}

{{- define "hoplite.credentialsMount" -}}
{{- if or .Values.auth.tokenSecret .Values.auth.tlsSecret }}
- {name: credentials, mountPath: /credentials, readOnly: true}
{{- end }}
{{- end -}}

{{- /* The labels of a pod: those of the chart win over those of the values. */ -}}
{{- define "hoplite.podLabels" -}}
{{- $labels := include "hoplite.labels" .root | fromYaml -}}
{{- toYaml (merge $labels (dict "app.kubernetes.io/component" .component) .own) -}}
{{- end -}}

{{- /* Restarts the daemons at an upgrade if the token changed. The version of the Secret reveals nothing of it. */ -}}
{{- define "hoplite.podAnnotations" -}}
{{- $annotations := dict -}}
{{- with .root.Values.auth.tokenSecret -}}
{{- with lookup "v1" "Secret" $.root.Release.Namespace . -}}
{{- $_ := set $annotations "hoplite/token-version" .metadata.resourceVersion -}}
{{- end -}}
{{- end -}}
{{- with merge $annotations .own }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The kubelet gives the files of Secrets to root and to this group. */ -}}
{{- define "hoplite.podSecurityContext" -}}
fsGroup: 7400
{{- end -}}

{{- define "hoplite.securityContext" -}}
runAsNonRoot: true
runAsUser: 7400
runAsGroup: 7400
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "hoplite.scheduling" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* An amount of memory as a number of MiB: its name and its value. */ -}}
{{- define "hoplite.mebibytes" -}}
{{- $name := index . 0 -}}
{{- $text := index . 1 | toString -}}
{{- if not (regexMatch "^[1-9][0-9]{0,8}(Mi|Gi|Ti)B?$" $text) -}}
{{- fail (printf "%s is %q: write a whole number with Mi, Gi or Ti, such as 8Gi" $name $text) -}}
{{- end -}}
{{- $number := regexFind "^[0-9]+" $text | int64 -}}
{{- if contains "T" $text }}{{ mul $number 1048576 }}{{ else if contains "G" $text }}{{ mul $number 1024 }}{{ else }}{{ $number }}{{ end -}}
{{- end -}}

{{- define "hoplite.storeMemory" -}}
{{ include "hoplite.mebibytes" (list "store.memory" .Values.store.memory) }}
{{- end -}}

{{- define "hoplite.storeResources" -}}
{{- $overhead := include "hoplite.mebibytes" (list "store.memoryOverhead" .Values.store.memoryOverhead) -}}
{{- $memory := printf "%dMi" (add (include "hoplite.storeMemory" .) $overhead) -}}
{{- $resources := deepCopy .Values.store.resources -}}
{{- range $part := list "requests" "limits" -}}
{{- $of := get $resources $part | default dict -}}
{{- if hasKey $of "memory" -}}
{{- fail (printf "store.resources.%s.memory is set: the chart computes it from store.memory and store.memoryOverhead" $part) -}}
{{- end -}}
{{- $_ := set $resources $part (set $of "memory" $memory) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{- /* The parent of the socket's directory. */ -}}
{{- define "hoplite.socketVolume" -}}
- name: socket
  {{- with .Values.store.claim }}
  persistentVolumeClaim: {claimName: {{ . }}}
  {{- else }}
  hostPath: {path: {{ dir .Values.store.hostPath }}, type: Directory}
  {{- end }}
{{- end -}}

{{- define "hoplite.socketMount" -}}
- {name: socket, mountPath: /run/hoplite, subPath: {{ base .Values.store.hostPath }}}
{{- end -}}
